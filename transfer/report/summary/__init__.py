"""The summary of a report, the variants that a page compares by default, and the samples with the largest differences.

Verdicts come from `transfer.statistics` and `transfer.comparison`; here they are only put into words.
"""
