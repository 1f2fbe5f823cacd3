"""Speed and memory beside other implementations, as ratios within one process.

Parity of numbers is in `tests/benchmarks/parity`. Run them with `python -m tests.benchmarks NAME`.
"""
