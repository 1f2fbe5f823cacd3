"""The report as one self-contained HTML page: its sections, their tables and pictures, and the records behind them.

`sections.py` decides what a report shows and in which order; numbers are made in `report/tables`.
"""
