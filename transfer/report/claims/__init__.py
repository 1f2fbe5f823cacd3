"""Claims judged by the rules of their rows: one table and page of verdicts, and the document of a study.

`docs/guide/claims.md` describes the rows; it reads records through `transfer.comparison`, and decides nothing itself.
"""
