"""Keys, values and recurrent states: pages, block tables, the prefix cache."""
