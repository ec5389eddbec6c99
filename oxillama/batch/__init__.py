"""Faces: files of requests, answered by one engine that batches over all of them.

`plain` answers rows of a prompt or messages with options, `api` rows of OpenAI's batch format, by the
server's own application, `rows` tells the two apart and makes errors of what is wrong with a row. `pool`
keeps a bounded number of rows running and hands the answers out in the order of the rows. `engines` has the
options of an engine for jobs, `sources` reads JSONL and Parquet, `tables` writes Parquet, `job` is a run over
a file that goes on where it was killed.

An answer follows from the row, the model and the options of the job alone, so that a row may be answered
twice, by another process or on another machine, and nobody can tell.
"""
