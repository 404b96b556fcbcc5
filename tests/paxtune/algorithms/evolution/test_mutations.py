import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms import (
    AnyMutation,
    ChangeLayer,
    ChangeOneDecision,
    DeleteLayer,
    InsertLayer,
    Mutation,
    SwapLayers,
)
from paxtune.algorithms.encoding.sampling import draw, mutate
from paxtune.algorithms.evolution.layer_lists import active_layer_lists
from paxtune.search_space.decisions import Decisions, size, to_dna
from tests.conformance.algorithm_suite import conditional
from tests.factories import spaces
from tests.factories.spaces import values
from tests.properties import examples
from trainer.symbolic.errors import UserError

LAYER_MUTATIONS: list[Mutation] = [ChangeLayer(), InsertLayer(), DeleteLayer(), SwapLayers()]
MUTATIONS: list[Mutation] = [*LAYER_MUTATIONS, ChangeOneDecision(), AnyMutation()]
KINDS = [type(mutation).__name__ for mutation in MUTATIONS]


@pytest.mark.parametrize('mutation', MUTATIONS, ids=KINDS)
@examples(12)
@given(values() | spaces.layer_spaces(), st.integers(0, 2**32))
@pytest.mark.fast(2)
def test_children_are_legal_and_deterministic(mutation, value, seed):
    spec = pg.dna_spec(value)
    parent = draw(spec, random.Random(seed))
    before = dict(parent)
    child = mutation.mutate(spec, parent, random.Random(seed))
    assert parent == before
    assert mutation.mutate(spec, parent, random.Random(seed)) == child
    if child is None:
        # No decision can change, or no layer, or two layers are equal.
        alone = size(spec) == 1
        assert alone or (mutation in LAYER_MUTATIONS and not _changeable(spec, parent, mutation))
    else:
        assert child != parent
        assert list(to_dna(spec, child).to_dict()) == list(child)


def _changeable(spec: pg.DNASpec, parent: Decisions, mutation: Mutation) -> bool:
    """True if a layer mutation always finds a child: a layer holds a range, or layers can swap."""
    for layer_list in active_layer_lists(spec, parent):
        layers = [slot.layer(parent) for slot in layer_list.slots]
        if isinstance(mutation, SwapLayers):
            if all(layer != layers[0] for layer in layers[1:]) and len(layers) == 2:
                return True
        elif all(any(type(value) is float for value in layer.values()) for layer in layers):
            return True
    return False


def test_change_one_decision_is_stable():
    spec = pg.dna_spec(conditional())
    parent = draw(spec, random.Random(0))
    for step in (None, 0.1):
        children = [
            ChangeOneDecision(step=step).mutate(spec, parent, random.Random(seed))
            for seed in range(20)
        ]
        assert children == [mutate(spec, parent, random.Random(seed), step) for seed in range(20)]


def _stack() -> Any:
    """Layers that are a letter, or have a width."""
    layers = [pg.oneof([*'abcdefgh', pg.Dict(width=pg.oneof([1, 2]))]) for _ in range(5)]
    return pg.Dict(rate=pg.floatv(0.0, 1.0), layers=layers)


SPEC = pg.dna_spec(_stack())
PARENT: Decisions = {'rate': 0.5} | {f'layers[{i}]': i for i in range(5)}


def _letter(child: Decisions, name: str) -> str:
    index = int(child[name])
    return 'abcdefgh'[index] if index < 8 else str(1 + int(child[f'{name}[=8/9].width']))


def _texts(mutation: Mutation, count: int = 600) -> Counter[str]:
    """Frequencies of children of the layers 'abcde'; a width stands for its layer."""
    found: Counter[str] = Counter()
    for seed in range(count):
        child = mutation.mutate(SPEC, PARENT, random.Random(seed))
        assert child is not None and child['rate'] == 0.5
        found[''.join(_letter(child, f'layers[{slot}]') for slot in range(5))] += 1
    return found


_ANY = 'abcdefgh12'


def _changed(text: str) -> set[str]:
    return {text[:i] + each + text[i + 1 :] for i in range(len(text)) for each in _ANY}


def _inserted(text: str) -> set[str]:
    return {(text[:i] + each + text[i:])[: len(text)] for i in range(len(text)) for each in _ANY}


def _deleted(text: str) -> set[str]:
    return {text[:i] + text[i + 1 :] + each for i in range(len(text)) for each in _ANY}


def _swapped(text: str) -> set[str]:
    found = set()
    for i in range(len(text)):
        for j in range(i):
            letters = list(text)
            letters[i], letters[j] = letters[j], letters[i]
            found.add(''.join(letters))
    return found


@pytest.mark.parametrize(
    ('mutation', 'expected'),
    [
        (ChangeLayer(), _changed),
        (InsertLayer(), _inserted),
        (DeleteLayer(), _deleted),
        (SwapLayers(), _swapped),
    ],
    ids=lambda each: type(each).__name__,
)
def test_layer_mutations_draw_and_move_layers(
    mutation: Mutation, expected: Callable[[str], set[str]]
):
    everything = expected('abcde') - {'abcde'}
    found = _texts(mutation, 250)
    assert set(found) <= everything
    assert len(found) > 0.9 * len(everything)


def test_each_slot_changes_equally_often():
    found = _texts(ChangeLayer())
    for slot in range(5):
        count = sum(n for text, n in found.items() if text[slot] != 'abcde'[slot])
        assert abs(count - 120) < 50


def test_a_moved_layer_keeps_its_children():
    parent = PARENT | {'layers[1]': 8, 'layers[1][=8/9].width': 1}
    orders = set()
    for seed in range(40):
        child = SwapLayers().mutate(SPEC, parent, random.Random(seed))
        assert child is not None
        (name,) = (id_ for id_ in child if id_.endswith('width'))
        assert child[name] == 1
        orders.add(name)
    assert orders == {f'layers[{i}][=8/9].width' for i in range(5)}


def test_equal_layers_are_not_swapped():
    alike: Decisions = {'rate': 0.5} | {f'layers[{i}]': 3 for i in range(5)}
    assert SwapLayers().mutate(SPEC, alike, random.Random(0)) is None
    assert AnyMutation([SwapLayers()]).mutate(SPEC, alike, random.Random(0)) is None
    either = AnyMutation([SwapLayers(), ChangeOneDecision()])
    assert either.mutate(SPEC, alike, random.Random(0)) not in (None, alike)


def test_mutations_are_drawn_by_weight():
    def shares(weights: list[float] | None) -> float:
        mutation = AnyMutation([SwapLayers(), ChangeLayer()], weights=weights)
        found = _texts(mutation, 120)
        return sum(n for text, n in found.items() if sorted(text) == list('abcde')) / 120

    assert abs(shares(None) - 0.5) < 0.1
    assert abs(shares([1.0, 9.0]) - 0.1) < 0.07
    assert abs(shares([9.0, 1.0]) - 0.9) < 0.07


@examples(12)
@given(values(), st.integers(0, 2**32))
def test_without_layers_another_mutation_is_drawn(value, seed):
    spec = pg.dna_spec(value)
    parent = draw(spec, random.Random(seed))
    child = AnyMutation().mutate(spec, parent, random.Random(seed))
    assert (child is None) == (ChangeOneDecision().mutate(spec, parent, random.Random(0)) is None)


def test_layer_mutations_require_layers():
    spec = pg.dna_spec(conditional())
    for mutation in [*LAYER_MUTATIONS, AnyMutation([SwapLayers(), ChangeLayer()])]:
        name = 'SwapLayers' if isinstance(mutation, AnyMutation) else type(mutation).__name__
        with pytest.raises(UserError, match=rf'^{name}.*Use ChangeOneDecision\(\)'):
            mutation.check_space(spec)
        mutation.check_space(SPEC)
    for mutation in (ChangeOneDecision(), AnyMutation()):
        mutation.check_space(spec)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: ChangeOneDecision(step=0.0), 'step must be above 0'),
        (lambda: AnyMutation([]), 'mutations must hold at least one'),
        (lambda: AnyMutation([SwapLayers()], weights=[1.0, 2.0]), 'as many as mutations, 1'),
        (lambda: AnyMutation([SwapLayers()], weights=[0.0]), 'weights must be greater than 0'),
    ],
)
def test_fields_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
