"""State: receipts, which name all that a text follows from, so that anybody can check it."""
