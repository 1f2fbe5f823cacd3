"""Diagnostics of tokens as a task.

The measures are in `backbones.diagnostics`.
"""
