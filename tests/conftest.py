"""Two processes run the tests, each on one core: threads of several would wait for each other most of the time."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported: its kernels then run on the CPU
