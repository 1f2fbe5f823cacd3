"""The record of a run, the folder of all runs, and relations between records.

Protocols, lineage, variants and run sets are worked out here once for every report. Nothing here imports torch, makes a
table or computes a statistic.
"""
