"""Bundled datasets for smoke runs and tests, in published layouts: digits of scikit-learn; drawn people, scenes,
shapes.

They are written to the cache folder when they are first used.
"""
