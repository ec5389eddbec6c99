"""Sessions (sequences run by hand), snapshots of sequences and requests, receipts of generated texts."""
