"""Architecture search over the kind, width and heads of each layer, with a cost in the reward.

    python -m paxtune.search --exp=examples.nas.QualityAtCost

12 trials take a minute and a half on two cores. The best reward is about 0.36: the accuracy,
corrected for the distance of its cost from a target. This prints the space without training, and
the share of infeasible architectures: `python -m paxtune.space --exp=examples.nas.QualityAtCost`.
"""

import pyglove as pg

from paxtune import (
    Budget,
    Constraint,
    Infeasible,
    Limit,
    RegularizedEvolution,
    Requires,
    Search,
    Tunable,
    TunasAbsolute,
    derived,
    intv,
)
from search_spaces.tunable_lm import Tiny
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Identity,
    Residual,
    Stack,
    TransformerLm,
)

MAX_PARAMS = 60_000
TARGET_FLOPS = 250_000


class MixesPositions(Constraint):
    """A constraint in Python, for conditions beyond expressions."""

    def require(self, experiment: Tunable) -> None:
        layers = [residual.layer for residual in experiment.task.model.stack.layers]
        if not any(isinstance(layer, Attention) for layer in layers):
            raise Infeasible('no layer is attention: the model would not see its context')


def layer() -> Residual:
    """Attention, a feed-forward layer of either kind, or nothing at all."""
    # Decisions with the same name are one decision: all attention layers have the same heads. Each
    # layer has its own kind and width.
    attention = Attention(
        num_heads=pg.oneof([2, 3, 4, 6], name='heads'),
        head_dim=derived('embedding.dims // num_heads'),
    )
    feed_forward = FeedForward(hidden_dims=intv(32, 256, 'log'))
    return Residual(pg.oneof([attention, feed_forward, GatedFeedForward(), Identity()]))


def QualityAtCost() -> Tunable:
    """Accuracy of the next byte, corrected by the distance of FLOPs per token from a target."""
    model = TransformerLm(
        Embedding(256, dims=pg.oneof([32, 48, 64])), Stack([layer() for _ in range(3)])
    )
    search = Search(
        TunasAbsolute('eval/accuracy', 'flops_per_token', TARGET_FLOPS, exponent=-0.1),
        budget=Budget(12),
        algorithm=RegularizedEvolution(population_size=6, tournament_size=3),
        constraints=[
            Requires('task.model.embedding.dims % shared.heads == 0', 'heads must divide dims'),
            MixesPositions(),
        ],
        limits=[Limit('num_params', at_most=MAX_PARAMS)],
    )
    experiment = Tiny()
    experiment.rebind(
        {
            'task.model': model,
            'task.learner.learning_rate': 0.02,
            'train.evaluation.every': 60,
            'search': search,
        }
    )
    return experiment
