"""Work: a server's flight recorder: requests and answers with receipts, in a folder."""
