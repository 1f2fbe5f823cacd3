"""The answer of a report in a few sentences, the variants that a page compares by itself, and where these differ most.

Verdicts come from `transfer.statistics` and `transfer.comparison`; here they are only put into words.
"""
