"""`python -m transfer.report`: records as tables, figures and a page, in sections.

`sections.py` decides what a report shows and in which order. The modules below make a `Table` or a figure from a
`StoredRuns`, which renderers turn into text, CSV or HTML. Statistics are in `transfer/statistics`, pairing of runs in
`transfer/comparison`.
"""
