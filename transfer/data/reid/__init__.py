"""Re-identification datasets: names of Market-1501 and MSMT17, folders of persons, list files, sets of torchreid.

Rankings and their metrics are in `tasks.ranking`.
"""
