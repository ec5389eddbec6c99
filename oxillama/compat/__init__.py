"""The reference implementation's names for what the engine offers under other names.

`docs/reference-names.md` maps each of these names to oxillama's own.
"""
