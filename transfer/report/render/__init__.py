"""Tables as text: Markdown, CSV, LaTeX, and lines that fit a terminal.

Renderers choose digits, letters and what is left out; the values of tables are made in `transfer.report.tables`.
"""
