"""A server's flight recorder: stores requests and answers with receipts in a folder."""
