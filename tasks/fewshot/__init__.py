"""Few-shot probes on frozen features: features stored on disk, support sets, fits, scores.

The probes themselves are in `tasks.probes`.
"""
