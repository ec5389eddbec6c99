"""Files: matrices that come and go, so that a model may be larger than the memory."""
