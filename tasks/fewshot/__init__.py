"""Few-shot probes on frozen features: the features and their store on disk, support sets, fits, scores.

The probes themselves are in `tasks.probes`.
"""
