"""Two processes run the tests, each on one core: threads of several would wait for each other most of the time."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
