"""`python -m transfer.report`: records as tables, figures and a page.

The modules here make a `Table` or a figure from a `RunSet`, which renderers turn into text, CSV or HTML. Statistics are
in `transfer/statistics`, pairing of runs in `transfer/comparison`.
"""
