"""What is known of a task without its model: options, metrics, version, the data it opens, what identifies a run.

One module a task, which gives it as `FACTS`. The task itself, in `tasks/`, derives from it and adds what trains and
scores. Nothing here imports torch, so that help texts, wrong options and finished records are answered at once.
"""
