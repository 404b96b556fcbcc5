"""paxtune: tunes experiments that run on a full, sharded Pax-style trainer.

Names are imported when they are first used, so that `import paxtune` costs nothing.

Example:
    >>> import paxtune
    >>> paxtune.Tunable.__name__
    'Tunable'
"""

from etils import epy

with epy.lazy_api_imports(globals()):
    from paxtune.algorithms import RandomSearch as RandomSearch
    from paxtune.algorithms import RegularizedEvolution as RegularizedEvolution
    from paxtune.experiment import Search as Search
    from paxtune.experiment import Tunable as Tunable
    from paxtune.policies import ByValue as ByValue
    from paxtune.policies import MedianStopping as MedianStopping
    from paxtune.rewards import MetricReward as MetricReward
    from paxtune.study import Study as Study
