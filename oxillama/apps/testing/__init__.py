"""A pytest plugin for testing prompts, tools and agents with models."""
