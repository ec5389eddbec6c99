"""Files of requests, answered by one engine that batches over all of them.

`plain` answers rows that have a prompt or messages with options; `api` answers rows in OpenAI's batch format
with the server's application, and `reproducible` keeps of these answers what follows from the row; `rows`
chooses between both, and turns faulty rows into errors. `pool` runs a bounded number of rows at a time and
returns the answers in the order of the rows. `engines` has engine options for jobs, `facts` says what
determines the answers, `sources` reads JSONL and Parquet, `tables` writes Parquet, and `job` runs a whole
file and can be resumed after it was killed.

An answer depends only on the row, the model and the options of the job. So a row may be answered twice, by
another process or on another machine, with the same result.
"""
