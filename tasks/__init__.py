"""Task adapters: one module a task here, one YAML of its name in `configs/tasks/`.

What several tasks share lies beside them (data with labels, heads, losses, probes) or in a room below. Backbones and
the training loop live in `backbones`; records and tables are written by `transfer`.
"""
