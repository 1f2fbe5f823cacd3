"""`python -m transfer.sweep`: a grid of runs, one process each, searches of the largest stable rate, and their report.

What a sweep's YAML may say is in `transfer/experiments`; where processes run is in `transfer/launch`.
"""
