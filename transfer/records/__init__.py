"""One finished run's record, the folder of all runs, and what records say of each other.

Protocols, lineage, variants and run sets are worked out here once for every report. Nothing here imports torch, makes a
table or computes a statistic.
"""
