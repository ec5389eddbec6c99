"""Work: snapshots of sequences and requests, as files and other processes hold them."""
