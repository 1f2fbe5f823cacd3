"""`python -m transfer.report`: records as tables, figures and a page.

Each part makes a `Table` or a figure from a `RunSet`; the renderers of text, CSV and HTML come last. Statistics live in
`transfer/statistics`, pairing in `transfer/comparison`.
"""
