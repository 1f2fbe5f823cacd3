"""`python -m transfer.verify`: checks a run against its record, from checksums to recomputed scores.

Nothing is trained and nothing is written.
"""
