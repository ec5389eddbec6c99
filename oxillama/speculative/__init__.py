"""State: what a sequence drafts, from its own text, and how many tokens are worth drafting."""
