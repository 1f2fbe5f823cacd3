"""Time of a step of one run's model beside one of another's, for `--measure-cost`.

Nothing is trained or scored, and no table is made: `transfer.report.tables.costs` has the table.
"""
