"""The constant of the attention functions."""

FLASH_ATTN_THRESHOLD = 0
"""Positions up to which attention is computed otherwise than block by block: none, every length is."""
