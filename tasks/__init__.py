"""Task adapters, and what tasks share. A task is one module here and one YAML of its name in `configs/tasks/`."""
