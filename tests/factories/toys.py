"""Small experiments for tests of studies: no trainer, no JAX."""

from typing import Any

import pyglove as pg

from paxtune.algorithms import RandomSearch
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.search_space.constraints import Constraint, Infeasible
from trainer.symbolic.component import Component


class Block(Component):
    """A choice with decisions of its own inside."""

    heads: int = 2
    name: str = 'block'


class Dense(Component):
    """Another choice."""

    width: int = 8


class Toy(Component):
    """Anything with a search in it."""

    search: Search
    rate: float = 0.1
    layer: Any = None
    widths: Any = None


LOSS = MetricReward(metric='loss', goal='minimize')
OBJECTIVES = Objectives([LOSS, MetricReward('maximize', 'accuracy')])


def search(**fields: Any) -> Search:
    """A search over the toy's loss."""
    return Search(
        **({'objective': LOSS, 'budget': Budget(5), 'algorithm': RandomSearch()} | fields)
    )


def toy(**fields: Any) -> Toy:
    """An experiment with a log range, a conditional choice and a choice of several."""
    defaults = {
        'search': search(),
        'rate': pg.floatv(1e-4, 1e-1, 'log'),
        'layer': pg.oneof([Block(pg.oneof([1, 2, 4])), Dense(), Dense(16)]),
        'widths': pg.manyof(2, [1, 2, 3, 4]),
    }
    return Toy(**(defaults | fields))


class NotDense(Constraint):
    """A constraint that forbids a good part of the space."""

    def require(self, experiment: Any) -> None:
        if isinstance(experiment.layer, Dense):
            raise Infeasible('no dense layers')
