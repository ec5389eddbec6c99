"""Work: grammars for requests."""
