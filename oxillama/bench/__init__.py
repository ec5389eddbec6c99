"""Faces: times models on this machine and compares reports of such runs."""
