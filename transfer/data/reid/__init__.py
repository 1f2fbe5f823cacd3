"""Re-identification datasets: file names of Market-1501 and MSMT17, list files, datasets of torchreid.

Rankings and their metrics are in `tasks.ranking`.
"""
