"""Which runs are compared with which, and contrasts of their scores with intervals over samples and seeds.

It reads records and per-sample outcomes, and hands values to the reports; the formulas are in `transfer.statistics`.
No sentence for a reader is made here.
"""
