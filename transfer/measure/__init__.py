"""Interleaved timing of the models of two runs, for `--measure-cost`.

Nothing is trained or scored, and no table is made: `transfer.report.tables.costs` has the table.
"""
