"""Intervals, tests and verdicts from arrays of numbers; the formulas are explained in `docs/concepts/statistics.md`.

Nothing here knows of records, files or tables. Runs are read and paired by `transfer.comparison`; sentences are made by
`transfer.report`.
"""
