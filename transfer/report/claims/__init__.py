"""Verdicts on claims, as a table, a page, and the document of a study.

`docs/guide/claims.md` describes the rows; it reads records through `transfer.comparison`, and decides nothing itself.
"""
