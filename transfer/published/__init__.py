"""Published numbers of papers, read from YAML, and verdicts on own runs compared with them.

The choice of the runs that belong to a row, and the table that shows both, are in `transfer.report.published`.
"""
