"""Files for other people: bundles of runs and model cards.

Paths of this machine are removed on the way. Nothing is uploaded.
"""
