"""Work: several samples of one prompt, which is run once."""
