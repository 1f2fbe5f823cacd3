"""A published table beside one's own runs: which of them belong to a cell, what keeps them apart, and the table.

The papers' numbers themselves, and the verdicts on them, are in `transfer.published`.
"""
