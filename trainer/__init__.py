"""The trainer: a Pax-style trainer on flax that knows nothing of tuning.

Experiments are symbolic objects; `trainer.run` trains one and yields what it measures:

    for measurement in trainer.run(experiment, 'runs/mine'):
        print(measurement.step, measurement.metrics['eval/loss'])

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.experiment import Experiment as Experiment
    from trainer.loop import Measurement as Measurement
    from trainer.loop import run as run

_HOME = {
    'Experiment': 'trainer.experiment',
    'Measurement': 'trainer.loop',
    'run': 'trainer.loop',
}

__all__ = ['Experiment', 'Measurement', 'run']


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
