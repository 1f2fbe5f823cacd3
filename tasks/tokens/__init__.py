"""Token diagnostics.

The measures are in `backbones.diagnostics`.
"""
