"""Decisions: typed questions about a text, answered with a probability for each option; nothing is generated.

`questions.py` has the questions, `answers.py` the answers and their arithmetic, `rules.py` how each kind of
decision model is read, `prompts.py` its prompts, `deciding.py` the requests of the engine.
"""
