"""Architecture search: every layer chooses what it is."""

import pyglove as pg

from paxtune.algorithms import RegularizedEvolution
from paxtune.experiment import Tunable
from paxtune.policies import MedianStopping
from paxtune.searching import Search
from search_spaces.lm import BITS_PER_BYTE, StdlibTunable
from trainer.layers import Attention, FeedForward, GatedFeedForward, Identity, Residual

_LAYERS = 4


def layer_choice() -> Residual:
    """A layer that is attention, a feed-forward layer of either kind, or nothing at all.

    What else there is to decide depends on the kind: the number of heads, or the width.
    """
    kinds = [
        Attention(num_heads=pg.oneof([2, 4, 8]), head_dim=16),
        GatedFeedForward(hidden_dims=pg.oneof([64, 128, 192])),
        FeedForward(hidden_dims=pg.oneof([96, 192, 288])),
        Identity(),
    ]
    return Residual(layer=pg.oneof(kinds))


def StdlibNas() -> Tunable:
    """Four layers, each of a kind and a width of its own: 10,000 architectures, and their rate.

        python -m paxtune.search --exp=nas.StdlibNas --num_trials=12

    12 trials take about 5 minutes on two cores.
    """
    experiment = StdlibTunable()
    experiment.rebind(
        {
            'task.model.stack.layers': [layer_choice() for _ in range(_LAYERS)],
            'task.model.stack.repeats': 1,
            'task.learner.schedule.warmup_steps': 20,
            'task.learner.optimizer.weight_decay': 0.1,
            'search': Search(
                reward=BITS_PER_BYTE,
                num_trials=12,
                algorithm=RegularizedEvolution(population_size=4, tournament_size=2),
                policy=MedianStopping(min_trials=4),
            ),
        }
    )
    return experiment
