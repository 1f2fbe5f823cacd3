"""A report as one self-contained HTML page, with the records behind it.

`report/sections.py` decides what a report shows and in which order; numbers are made in `report/tables`.
"""
