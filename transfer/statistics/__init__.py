"""Intervals, tests and verdicts from arrays of numbers. `docs/concepts/statistics.md` has the formulas.

Nothing here knows of records, files or tables. Runs are read and paired by `transfer.comparison`; sentences are made by
`transfer.report`.
"""
