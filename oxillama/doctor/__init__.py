"""Faces: what holds this machine back, and the share of its peak rates that a model reaches.

`machine` reads the facts of the system, `measure` measures rates, `findings` says what both mean for the
speed of a model, `diagnosis` does all three. `oxillama doctor` prints the result.
"""
