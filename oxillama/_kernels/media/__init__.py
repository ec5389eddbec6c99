"""Sounds: the sums of a resampling filter."""
