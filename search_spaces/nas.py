"""Architecture search: a choice of the kind and the sizes of every layer.

A new kind of layer is a line in `layer_kinds`; see docs/architecture-search.md.
"""

from collections.abc import Sequence
from typing import Any

import pyglove as pg

from paxtune.algorithms import NSGA2, RegularizedEvolution
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.schedulers import MedianStopping
from search_spaces.lm import BITS_PER_BYTE, StdlibTunable
from trainer.layers import (
    RGLRU,
    Attention,
    DepthwiseConv1D,
    Experts,
    FeedForward,
    GatedDeltaNet,
    GatedFeedForward,
    Identity,
    LatentAttention,
    Layer,
    Mamba2,
    Residual,
    SharedWithPrevious,
    Stack,
    TransformerBlock,
)

BASELINE_PARAMS = 98_624
"""Parameters of `lm.StdlibTunable` with two blocks: the limit of all architectures."""

BASELINE_FLOPS = 688_128
"""Operations of the same model for each token of training."""

_HEAD_DIM = 16
_ACTIVATIONS = ['gelu', 'silu', 'squared_relu']


def layer_kinds() -> list[Layer]:
    """Lists the kinds of a layer, each with decisions of its own."""
    norm_policy = pg.oneof(['pre', 'primer_hybrid', 'post'])
    activation, ratio = pg.oneof(_ACTIVATIONS), pg.oneof([1.0, 2.0, 3.0, 4.0])
    attention = Attention(
        num_heads=pg.oneof([2, 4]),
        num_kv_heads=pg.oneof([1, 2]),
        head_dim=_HEAD_DIM,
        window=pg.oneof([None, 8, 32]),
    )
    return [
        Residual(attention, norm_policy=norm_policy),
        Residual(FeedForward(hidden_ratio=ratio, activation=activation), norm_policy=norm_policy),
        Residual(GatedFeedForward(hidden_ratio=pg.oneof([1.0, 2.0])), norm_policy=norm_policy),
        Residual(DepthwiseConv1D(width=pg.oneof([3, 5, 9])), norm_policy=norm_policy),
        SharedWithPrevious(),
        Identity(),
    ]


def decoder(num_layers: int, kinds: Sequence[Layer] | None = None) -> Stack:
    """A stack with a choice of the kind of each layer.

    Args:
        num_layers: largest number of layers; `Identity` leaves a layer out.
        kinds: kinds of layers; `layer_kinds()` by default. The first layer cannot be shared.
    """
    kinds = layer_kinds() if kinds is None else kinds
    first = [kind for kind in kinds if not isinstance(kind, SharedWithPrevious)]
    return Stack([pg.oneof(first), *(pg.oneof(kinds) for _ in range(num_layers - 1))])


def StdlibNas() -> Tunable:
    """Six layers, each with its own kind, width, heads, window and norm policy.

        python -m paxtune.search --exp=nas.StdlibNas --num_trials=12

    No architecture has more parameters than `lm.StdlibTunable` with two blocks.
    """
    return _stdlib(
        stack=decoder(num_layers=6),
        search=_evolution(num_trials=12, population_size=4, tournament_size=2),
    )


def StdlibKinds() -> Tunable:
    """Four layers, each of one of six kinds without decisions of its own: 1,296 models.

        python -m paxtune.supernet --exp=nas.StdlibKinds --top=4

    Without a supernet: `python -m paxtune.search --exp=nas.StdlibKinds --num_trials=16`.
    """
    kinds: list[Layer] = [
        Residual(Attention(num_heads=4, head_dim=_HEAD_DIM)),
        Residual(Attention(num_heads=4, head_dim=_HEAD_DIM, window=8)),
        Residual(FeedForward(hidden_ratio=3.0)),
        Residual(GatedFeedForward(hidden_ratio=2.0)),
        Residual(DepthwiseConv1D(width=5)),
        Identity(),
    ]
    experiment = _stdlib(
        stack=decoder(num_layers=4, kinds=kinds),
        search=_evolution(num_trials=16, population_size=6, tournament_size=3),
    )
    experiment.rebind({'task.learner.learning_rate': 0.01})
    return experiment


def primer_block(ratios: Sequence[float] = (2.0, 2.5, 3.0, 3.5)) -> TransformerBlock:
    """A block with a choice of primitives: activation, gate, convolutions, normalization.

    Primer (So et al. 2021) is one of them: squared ReLU, and convolutions of width 3 after queries,
    keys and values.

    Args:
        ratios: widths of the feed-forward layer, as multiples of the model's width. A gated layer
            has two thirds of it, and so as many parameters.
    """

    def convolution() -> Any:
        return pg.oneof([None, DepthwiseConv1D(width=3), DepthwiseConv1D(width=5)])

    activation = pg.oneof(['gelu', 'silu', 'relu', 'squared_relu'])
    gated = [round(2 / 3 * ratio, 3) for ratio in ratios]
    return TransformerBlock(
        attention=Attention(
            num_heads=pg.oneof([2, 4, 8]),
            query_convolution=convolution(),
            key_convolution=convolution(),
            value_convolution=convolution(),
        ),
        feed_forward=pg.oneof(
            [
                FeedForward(hidden_ratio=pg.oneof(list(ratios)), activation=activation),
                GatedFeedForward(hidden_ratio=pg.oneof(gated), activation=activation),
            ]
        ),
        norm_policy=pg.oneof(['pre', 'primer_hybrid']),
    )


def PrimerNas() -> Tunable:
    """Two blocks, each with its own primitives, as in the search that found Primer.

    python -m paxtune.search --exp=nas.PrimerNas --num_trials=16
    """
    return _stdlib(
        stack=Stack([primer_block(), primer_block()]),
        search=_evolution(num_trials=16, population_size=6, tournament_size=3),
    )


def mixer_block() -> TransformerBlock:
    """A block with a choice of the mixer of positions and of the feed-forward layer."""
    mixers: list[Layer] = [
        Attention(num_heads=pg.oneof([2, 4]), num_kv_heads=pg.oneof([1, 2]), head_dim=_HEAD_DIM),
        Attention(num_heads=4, head_dim=_HEAD_DIM, window=pg.oneof([8, 32])),
        LatentAttention(num_heads=4, latent_dims=32, head_dim=_HEAD_DIM),
        RGLRU(num_heads=4),
        Mamba2(head_dim=_HEAD_DIM, state_dims=pg.oneof([8, 16]), expansion=pg.oneof([1.0, 2.0])),
        GatedDeltaNet(num_heads=pg.oneof([2, 4]), head_dim=_HEAD_DIM),
        DepthwiseConv1D(width=pg.oneof([3, 5, 9])),
    ]
    channels: list[Layer] = [
        FeedForward(hidden_ratio=pg.oneof([1.0, 2.0, 3.0, 4.0]), activation='squared_relu'),
        GatedFeedForward(hidden_ratio=pg.oneof([1.0, 2.0])),
        Experts(num_experts=pg.oneof([4, 8]), hidden_dims=32),
    ]
    return TransformerBlock(attention=pg.oneof(mixers), feed_forward=pg.oneof(channels))


def MixerNas() -> Tunable:
    """Four blocks, each with attention, a state or a convolution, and one of three channel layers.

        python -m paxtune.search --exp=nas.MixerNas --num_trials=24

    No architecture has more than twice the parameters of `lm.StdlibTunable` with two blocks, or
    twice its operations.
    """
    limits = [
        Limit('num_params', at_most=2 * BASELINE_PARAMS),
        Limit('flops_per_token', at_most=2 * BASELINE_FLOPS),
    ]
    return _stdlib(
        stack=Stack([mixer_block() for _ in range(4)]),
        search=Search(objective=BITS_PER_BYTE, budget=Budget(24), limits=limits),
    )


def ElasticNas() -> Tunable:
    """Quality against cost: width and depth of a model, heads and width of each layer.

        python -m paxtune.search --exp=nas.ElasticNas --num_trials=24

    The dimensions of HW-GPT-Bench (Sukthanker et al. 2024) at a small scale. To print the Pareto
    front: `python -m paxtune.studies pareto DIR --out=front.html`.
    """

    def blocks(count: int) -> list[TransformerBlock]:
        return [
            TransformerBlock(
                attention=Attention(num_heads=pg.oneof([2, 4, 8])),
                feed_forward=FeedForward(hidden_ratio=pg.oneof([2.0, 3.0, 4.0])),
            )
            for _ in range(count)
        ]

    goals = [BITS_PER_BYTE, MetricReward(goal='minimize', metric='flops_per_token')]
    return _stdlib(
        stack=Stack(pg.oneof([blocks(count) for count in (1, 2, 3, 4)])),
        search=Search(
            objective=Objectives(goals),
            budget=Budget(24),
            algorithm=NSGA2(population_size=8),
            limits=[Limit('num_params', at_most=2 * BASELINE_PARAMS)],
        ),
        dims=pg.oneof([32, 48, 64, 96]),
    )


def _evolution(num_trials: int, population_size: int, tournament_size: int) -> Search:
    """Evolution for bits per byte, with at most the parameters of the uniform model."""
    return Search(
        objective=BITS_PER_BYTE,
        budget=Budget(num_trials),
        algorithm=RegularizedEvolution(population_size, tournament_size),
        scheduler=MedianStopping(min_trials=4),
        limits=[Limit('num_params', at_most=BASELINE_PARAMS)],
    )


def _stdlib(stack: Stack, search: Search, dims: Any = 64) -> Tunable:
    """`lm.StdlibTunable` with another model; besides it, only the learning rate is searched."""
    experiment = StdlibTunable()
    experiment.rebind(
        {
            'task.model.stack': stack,
            'task.model.embedding.dims': dims,
            'task.learner.learning_rate': pg.floatv(5e-3, 5e-2, 'log'),
            'task.learner.schedule.warmup_steps': 20,
            'task.learner.optimizer.weight_decay': 0.1,
            'search': search,
        }
    )
    return experiment
