"""`python -m transfer.verify`: whether a run is what its record says, from checksums to scores computed anew.

Nothing is trained and nothing is written. The plain statements of the metrics are in `tasks/reference`.
"""
