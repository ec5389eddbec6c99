"""Work: requests, the scheduler that batches them, the runner and the engine around it."""
