"""The data of the loops, and the number of passes through them."""

import numpy as np

EPOCHS = 10
X = np.linspace(-1, 1, 256, dtype=np.float32)[:, None]
Y = np.sin(8 * X)
