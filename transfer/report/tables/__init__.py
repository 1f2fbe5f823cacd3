"""Tables of scores, means, costs, comparisons, stability maps and tokens, and their renderers for text and CSV.

A table holds typed values; the renderers alone turn them into text.
"""
