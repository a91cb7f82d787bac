"""Before anything imports NumPy: a thread pool for linear algebra, which nothing here has use for, takes longer to start than most tests."""

import os

from enginefleet_builder.backends.threads import CARRIER

for name, value in CARRIER.items():
    os.environ.setdefault(name, value)
