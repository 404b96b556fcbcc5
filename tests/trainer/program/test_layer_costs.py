import math
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tests.conformance.layer_examples import encoder_decoder, resnet, vision_transformer
from tests.factories.tiny import LENGTH, VOCAB, CountingInput, experiment
from tests.factories.tiny_images import experiment as of_images
from trainer.layers import (
    Attention,
    Chain,
    Conv2D,
    Dropout,
    Embedding,
    FeedForward,
    Flatten,
    Identity,
    Layer,
    Linear,
    Residual,
    SharedWithPrevious,
    Stack,
    TransformerLm,
)
from trainer.layers.linen_adapter import LinenAdapter
from trainer.program.costs import static_costs
from trainer.program.flops import flops_by_scope
from trainer.program.layer_costs import LayerCost, layer_costs
from trainer.tasks import SequenceTask

D, F = 16, 32


def layers() -> list[Layer]:
    """Of width 16 and three kinds; two neighbours are equal but for a number."""
    return [
        Residual(Attention(2), dropout=Dropout(0.1)),
        Residual(FeedForward(F, dropout=Dropout(0.1))),
        Residual(FeedForward(F, dropout=Dropout(0.2))),
        Residual(Identity()),
    ]


def shared() -> list[Layer]:
    """Two layers, each applied twice."""
    return [each for _ in range(2) for each in (Residual(FeedForward(F)), SharedWithPrevious())]


def of_text(some: list[Layer] | None = None, head: Linear | None = None, **stack: Any) -> Any:
    """A language model."""
    stacked = Stack(layers() if some is None else some, **stack)
    return experiment(task__model=TransformerLm(Embedding(VOCAB, D), stacked, head=head))


class PairsInput(CountingInput):
    """Of an encoder and a decoder."""

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        spec = super().element_spec()
        return {**spec, 'encoder_ids': spec['ids']}


def of_pairs() -> Any:
    made = experiment()
    task = SequenceTask(model=encoder_decoder(), learner=made.task.learner.clone(deep=True))
    return made.rebind(task=task, train_input=PairsInput(batch_size=4, is_training=True))


class Classifier(LinenAdapter):
    """A module of flax as a whole model."""

    def make(self) -> nn.Module:
        return nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(3), nn.Dense(4)])


def names(costs: list[LayerCost]) -> list[str]:
    return [c.place if c.index is None else f'{c.place}[{c.index}]' for c in costs]


def both(cost: LayerCost) -> tuple[int, float]:
    return cost.num_params, cost.flops_per_token


STACK = ['embedding', *(f'stack[{i}]' for i in range(4)), 'final_norm']
EXPERIMENTS = {
    'unrolled': (of_text, STACK),
    'scanned': (lambda: of_text(scan='always'), STACK),
    'shared': (lambda: of_text(shared(), scan='never'), STACK),
    'shared and scanned': (lambda: of_text(shared(), scan='always'), STACK),
    'periodic': (lambda: of_text(layers()[:2], repeats=2, scan='always'), STACK),
    'with a head': (lambda: of_text(head=Linear(VOCAB)), [*STACK, 'head']),
    'encoder and decoder': (
        of_pairs,
        [
            'embedding', 'encoder[0]', 'encoder[1]', 'encoder_norm', 'decoder[0]', 'decoder[1]',
            'final_norm',
        ],
    ),
    'patches': (lambda: of_images(vision_transformer()), ['', 'stack[0]', 'final_norm']),
    'residual network': (
        lambda: of_images(resnet()), ['', 'stem', 'stage_0_block_0', 'stage_1_block_0'],
    ),
    'chain': (
        lambda: of_images(Chain([Conv2D(4), Flatten(), Linear(4)])),
        ['layers[0]', 'layers[1]', 'layers[2]'],
    ),
    'module of flax': (lambda: of_images(Classifier()), ['']),
}  # fmt: skip


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_the_sums_are_the_costs_of_the_model(name: str) -> None:
    make, places = EXPERIMENTS[name]
    made = make()
    costs, whole = layer_costs(made), static_costs(made)
    assert names(costs) == places
    assert sum(each.num_params for each in costs) == whole['num_params'] > 0
    flops = math.fsum(each.flops_per_token for each in costs)
    assert flops == pytest.approx(whole['flops_per_token'], rel=1e-12)


@pytest.mark.parametrize('scan', ['always', 'never'])
def test_a_layer_costs_what_is_saved_without_it(scan: str) -> None:
    some = layers()
    whole = static_costs(of_text(some, scan=scan))
    for index, cost in enumerate(layer_costs(of_text(some, scan=scan))[1:-1]):
        fewer = static_costs(of_text([*some[:index], *some[index + 1 :]], scan=scan))
        assert cost.num_params == whole['num_params'] - fewer['num_params']
        assert cost.flops_per_token == whole['flops_per_token'] - fewer['flops_per_token']


@pytest.mark.parametrize('scan', ['always', 'never'])
def test_a_layer_that_shares_costs_operations_alone(scan: str) -> None:
    costs = layer_costs(of_text(shared(), scan=scan))[1:-1]
    assert [each.num_params for each in costs] == [2 * D * F + D, 0] * 2
    assert len({each.flops_per_token for each in costs}) == 1
    assert [isinstance(each.layer, SharedWithPrevious) for each in costs] == [False, True] * 2


def test_costs_equal_those_counted_by_hand() -> None:
    embedding, attention, first, second, nothing, norm = layer_costs(of_text())
    assert (embedding.num_params, norm.num_params) == (VOCAB * D, D)
    assert embedding.flops_per_token == 3 * 2 * VOCAB * D  # The logits.
    assert attention.num_params == 4 * D * D + D
    assert attention.flops_per_token == 3 * 2 * (4 * D * D + 2 * LENGTH * D)
    assert both(first) == both(second) == (2 * D * F + D, 3 * 2 * 2 * D * F)
    assert both(nothing) == (0, 0.0)


def test_layers_are_those_of_the_experiment() -> None:
    """Tracing leaves tracers in place of numbers."""
    for scan in ('always', 'never'):
        made = of_text(scan=scan)
        _, *found, _ = layer_costs(made)
        assert [each.layer for each in found] == list(made.task.model.stack.layers)
        of_layers: list[Any] = [each.layer for each in found[1:3]]
        assert [each.layer.dropout.rate for each in of_layers] == [0.1, 0.2]


def test_layers_that_repeat_are_counted_on() -> None:
    costs = layer_costs(of_text(repeats=3))
    assert [each.index for each in costs[1:-1]] == list(range(12))
    assert [*map(both, costs[1:5])] == [*map(both, costs[9:13])]


def test_the_model_itself_has_a_line() -> None:
    own, *rest = layer_costs(of_images(resnet()))
    assert not own.is_complete and all(each.is_complete for each in rest)
    assert own.num_params == 16 * 10 + 10  # The logits.
    assert own.flops_per_token == 3 * 2 * 16 * 10
    (all_of_it,) = layer_costs(of_images(Classifier()))
    assert all_of_it.is_complete


def test_operations_belong_to_the_innermost_scope() -> None:
    w = jnp.ones((4, 4))
    product = 2 * 4 * 4 * 4

    def function(w: jax.Array) -> jax.Array:
        with jax.named_scope('part:outer'):
            w = w @ w
            with jax.named_scope('part:inner'):
                w = jax.lax.scan(lambda x, _: (x @ x, None), w, length=5)[0]
            with jax.named_scope('unrelated'):
                w = jax.vmap(lambda row: w @ row)(w)
        return jax.lax.cond(w[0, 0] > 0, lambda: w @ w @ w, lambda: w @ w)

    found = flops_by_scope(function, re.compile(r'part:(\w*)'), w)
    assert found == {'outer': 2 * product, 'inner': 5 * product, '': 2 * product}
    assert flops_by_scope(function, None, w) == {'': 9 * product}
