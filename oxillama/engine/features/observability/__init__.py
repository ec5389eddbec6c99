"""What an engine does, for others to read: metrics, a log, a trace."""
