"""Work: names of the reference implementation for what the engine does by other names.

`docs/reference-names.md` maps each of them to ours.
"""
