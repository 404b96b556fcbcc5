"""Small tables of curves."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np

from paxtune.objectives.measurement import Measurement
from paxtune.simulate.files import write
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


def learning_curve(values: Any, steps: int) -> list[float]:
    """Rewards at steps 1, 2, …: no two trials have the same."""
    level = abs(math.log10(values['opt.rate']) + 2) / 10 + (values['kind'] == 'a') / 20
    curve = [2 * math.exp(-step / (2 + 8 * values['x'])) + level for step in range(1, steps + 1)]
    return [round(each, 9) for each in curve]


def write_curves(path: Path, rows: int = 40, steps: int = 6) -> Path:
    """A table of whole trials, evaluated after each step, which takes a tenth of a second."""
    rng = random.Random(rows)
    trials = []
    for number in range(1, rows + 1):
        values = {
            'x': rng.random(),
            'opt.rate': 10 ** rng.uniform(-4, -1),
            'kind': rng.choice(['a', 'b']),
        }
        curve = learning_curve(values, steps)
        row = {'trial': number, 'ended': 'completed', 'end': curve[-1], 'decisions': values}
        row |= {'rewards': curve, 'steps': [float(step) for step in range(1, steps + 1)]}
        trials.append(row | {'seconds': [step / 10 for step in range(1, steps + 1)]})
    path.write_text(write(trials, 'minimize', 'loss'))
    return path
