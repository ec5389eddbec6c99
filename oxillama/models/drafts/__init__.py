"""Models that draft for another model, from files of their own."""
