"""Faces: a plugin for pytest, which tests prompts, tools and agents with models."""
