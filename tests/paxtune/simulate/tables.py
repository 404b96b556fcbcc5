"""Tables of curves that tests make."""

import math
import random
from pathlib import Path
from typing import Any

from paxtune.simulate.files import write


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
