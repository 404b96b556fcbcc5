"""Small tables of curves."""

import math

import numpy as np

from paxtune.objectives.measurement import Measurement
from paxtune.simulate.table import CurveTable, Row

STEPS = 9


def table(rows: int = 40, steps: int = STEPS, seed: int = 0, diverging: bool = True) -> CurveTable:
    """Losses that fall towards what the decisions say, with noise; every seventh row diverges."""
    rng = np.random.default_rng(seed)
    return CurveTable(
        [_row(rng, steps, steps // 2 if diverging and i % 7 == 6 else steps) for i in range(rows)],
        'minimize',
        'loss',
    )


def _row(rng: np.random.Generator, steps: int, end: int) -> Row:
    rate, momentum = 10 ** rng.uniform(-4, 0), rng.uniform(0.1, 0.9)
    level = abs(math.log10(rate) + 2) + momentum
    losses = [level + 2 / step + rng.normal(0, 0.05) for step in range(1, end + 1)]
    measurements = [
        Measurement(step, {'loss': loss}, (loss,)) for step, loss in enumerate(losses, start=1)
    ]
    spent = [float(step) for step in range(1, end + 1 + (end < steps))]
    return Row(
        {'rate': rate, 'momentum': momentum},
        measurements,
        {'steps': spent, 'seconds': [0.5 * each for each in spent]},
        None if end < steps else losses[-1],
    )
