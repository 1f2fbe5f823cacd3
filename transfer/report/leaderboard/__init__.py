"""`python -m transfer.report --leaderboard`: a static site of the runs of several groups.

`submissions` checks what others sent, `standings` says which rows are told apart, `board` and `row_page` make sections,
`site` writes the files.
"""
