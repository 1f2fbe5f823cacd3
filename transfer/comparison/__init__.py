"""Comparisons of runs: pairs of matching runs, and contrasts of their scores with intervals.

It reads records and per-sample outcomes and returns values to the reports, which word them, with what a reader should
know of them (`notes`); the formulas are in `transfer.statistics`.
"""
