"""Task adapters: one module a task here, one YAML of its name in `configs/tasks/`.

Code that several tasks share (data with labels, heads, losses, probes) lies beside them or in a room below.
Backbones and the training loop live in `backbones`; records and tables are written by `transfer`.
"""
