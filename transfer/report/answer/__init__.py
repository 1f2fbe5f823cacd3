"""The answer of a report in a few sentences, and the arms that a page compares by itself.

Verdicts come from `transfer.statistics` and `transfer.comparison`; here they are only put into words.
"""
