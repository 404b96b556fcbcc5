"""Spaces of per-layer choices, tiny and on synthetic data."""

from typing import Any

import pyglove as pg

from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from tests.factories.tiny import experiment
from tests.factories.tunables import REWARD
from trainer.layers import Attention, FeedForward, GatedFeedForward, Identity, Layer, Residual


def kinds() -> list[Layer]:
    """Three kinds of a layer, of four models."""
    wide = Residual(FeedForward(hidden_dims=pg.oneof([16, 24])))
    return [wide, Residual(Attention(2)), Identity()]


def layers(**search: Any) -> Tunable:
    """Two layers, each of four models."""
    fields = {'objective': REWARD, 'budget': Budget(4), 'scheduler': None} | search
    made = Tunable(**dict(experiment().sym_init_args), search=Search(**fields))
    chosen = [pg.oneof(kinds()), pg.oneof(kinds())]
    return made.rebind({'task.model.stack.layers': chosen})


def Layers() -> Tunable:
    """`layers`, for the command line."""
    return layers()


def blocks() -> Tunable:
    """Two blocks with decisions inside of them."""
    made = layers()
    block = {'feed_forward': pg.oneof([FeedForward(16), GatedFeedForward(16)])}
    one = experiment().task.model.stack.layers[0]
    other = one.clone(deep=True).rebind({**block, 'attention.num_heads': pg.oneof([2, 4])})
    return made.rebind({'task.model.stack.layers': [one, other]})
