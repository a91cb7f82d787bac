"""Types of arrays. A module of its own: the child that holds an engine needs no more of the gate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
FloatArray = NDArray[np.float32]
Floats64 = NDArray[np.float64]
