"""Faces. Times models on this machine and compares reports of such runs."""
