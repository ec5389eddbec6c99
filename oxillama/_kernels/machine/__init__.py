"""What the machine can do: CPU features, processors of threads, and peak rates of reads and products."""
