"""Published tables beside your runs: matching runs, their differences from the paper, and the table.

The papers' numbers themselves are in `transfer.experiments`.
"""
