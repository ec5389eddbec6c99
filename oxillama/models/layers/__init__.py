"""The blocks a layer is wired from: attention, feed-forward, experts, recurrences, norms."""
