"""The reference's constant of attention functions."""

FLASH_ATTN_THRESHOLD = 0
"""The reference's threshold for block-wise attention: 0, because every length is computed block by block."""
