"""Lock-step comparisons with the repositories of papers, whose own code runs beside ours on equal numbers.

Speed is measured in `tests/benchmarks/speed`. Run them with `python -m tests.benchmarks NAME --checkout FOLDER`.
"""
