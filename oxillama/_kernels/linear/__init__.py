"""Packed matrices times activations."""
