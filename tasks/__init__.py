"""Task adapters: one folder a task with its `task.py` (options, metrics, version) and what trains and scores, and one
YAML of its name in `configs/tasks/`.

What several tasks share lies directly here or in `ranking`. Models live in `backbones`, the training loop and data in
`transfer`.
"""
