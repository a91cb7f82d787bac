"""Before anything imports NumPy: a thread pool for linear algebra, which nothing here has use for, takes longer to start than most tests."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
