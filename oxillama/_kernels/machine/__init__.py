"""What the machine can do: CPU features, processors of threads, and its fastest reads and products."""
