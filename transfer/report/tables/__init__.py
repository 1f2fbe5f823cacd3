"""Tables of scores, means, costs, comparisons, stability maps and tokens, and their renderers for text and CSV.

A table holds typed values; `render.py` alone turns them into words and digits.
"""
