"""Runs the layers of one model in several processes, the stages of a pipeline.

The engine's own process is the last stage. It decides everything: it schedules, counts pages, and samples.
The other stages decide nothing: `messages` says what runs, on which pages, and which pages are
copied before. A page has the same number in every stage, and each stage keeps its own layers of it.

`partition` splits the layers, `stage` runs some of them, `links` reach a stage, `pool` and `runner` take the
place of the engine's own; the engine's loop keeps several passes in flight, so that all stages work. `engine`
puts these together. How a process is reached is for others to say: a `StageLink`.
"""
