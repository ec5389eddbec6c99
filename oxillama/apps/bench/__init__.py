"""Measures the speed of models on this machine, and compares reports."""
