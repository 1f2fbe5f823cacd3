"""Figures as SVG with the data they show as CSV: training curves, cost, stability maps, tokens.

A figure draws the rows of a table and computes nothing of its own.
"""
