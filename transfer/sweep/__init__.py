"""`python -m transfer.sweep`: grids of runs, searches of the largest stable learning rate, and their report.

What a sweep's YAML may say is in `transfer/experiments`; where processes run is in `transfer/launch`.
"""
