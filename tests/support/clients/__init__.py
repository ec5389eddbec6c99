"""Loops of clients: a question, a call of a tool, its result, an answer, a further question, an answer.

`python_loops` and `node_loops.mjs` run in environments of the clients, which need nothing of this project.
"""
