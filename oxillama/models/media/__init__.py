"""Projector files (mmproj): decoding of pictures and sounds, preprocessing, encoders."""
