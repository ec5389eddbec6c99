"""Finds what slows down this machine, and the share of its peak rates that a model reaches.

`machine` reads facts of the system, `measure` measures rates, `findings` derives their effect on the
speed of a model, `diagnosis` combines all three. `oxillama doctor` prints the result.
"""
