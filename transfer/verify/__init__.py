"""`python -m transfer.verify`: checks a run against its record, from checksums to recomputed scores.

Nothing is trained and nothing is written. Bundles of runs, which are checked when they are imported, are written here.
"""
