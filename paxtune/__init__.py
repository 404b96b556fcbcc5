"""paxtune: tunes experiments that run on a full, sharded Pax-style trainer.

Names are imported when they are first used, so that `import paxtune` costs nothing.

Example:
    >>> import paxtune
    >>> paxtune.Tunable.__name__
    'Tunable'
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paxtune.algorithms import RandomSearch as RandomSearch
    from paxtune.algorithms import RegularizedEvolution as RegularizedEvolution
    from paxtune.experiment import Search as Search
    from paxtune.experiment import Tunable as Tunable
    from paxtune.policies import ByValue as ByValue
    from paxtune.policies import MedianStopping as MedianStopping
    from paxtune.rewards import MetricReward as MetricReward
    from paxtune.study import Study as Study

_HOME = {
    'ByValue': 'paxtune.policies',
    'MedianStopping': 'paxtune.policies',
    'MetricReward': 'paxtune.rewards',
    'RandomSearch': 'paxtune.algorithms',
    'RegularizedEvolution': 'paxtune.algorithms',
    'Search': 'paxtune.experiment',
    'Study': 'paxtune.study',
    'Tunable': 'paxtune.experiment',
}

__all__ = [
    'ByValue',
    'MedianStopping',
    'MetricReward',
    'RandomSearch',
    'RegularizedEvolution',
    'Search',
    'Study',
    'Tunable',
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
