"""From argv to a `Command`: options, YAML layers, and names, checked before torch is imported.

Nothing here imports torch, opens data or starts a run; options of training are declared in `transfer.engine.options`,
those of a task beside it.
"""
