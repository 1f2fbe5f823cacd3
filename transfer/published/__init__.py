"""Published numbers: the papers' rows as values, and what one's own runs can say of one of them.

Which runs belong to a row, and the table that shows both, are in `transfer.report.published`.
"""
