"""Supernets of tunable experiments."""

import itertools
from typing import Any

import pyglove as pg
import pytest

from paxtune.search_space.decisions import to_dna
from paxtune.study.trial_experiments import parts_of
from paxtune.supernet.supernet import supernet
from search_spaces.vision import DigitsNas
from tests.factories.tunables import blocks, kinds, layers
from trainer.experiment import Decoding, Experiment
from trainer.layers import (
    Attention,
    ChoiceLayer,
    FeedForward,
    GatedFeedForward,
    Residual,
    SharedWithPrevious,
    TransformerBlock,
)
from trainer.symbolic.component import numbers
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import from_json_text

STACK = 'task.model.stack.layers'


def test_a_supernet_has_all_candidates_of_each_layer() -> None:
    made = supernet(layers())
    for layer in made.experiment.task.model.stack.layers:
        assert isinstance(layer, ChoiceLayer) and layer.choice == -1
        dims = [
            each.layer.hidden_dims for each in layer.candidates[:2] if isinstance(each, Residual)
        ]
        assert dims == [16, 24] and len(layer.candidates) == 4
    assert type(made.experiment) is Experiment


def test_the_numbers_of_a_path_select_the_layers_of_its_trial() -> None:
    made = supernet(layers())
    choices = made.experiment.task.model.stack.layers
    for first, second in itertools.product(*(each.decisions for each in made.choices)):
        path = first | second
        to_dna(made.space.spec, path)
        trial = parts_of(made.space, path)['']
        chosen = made.numbers(path)
        assert chosen is not None and chosen.keys() <= numbers(made.experiment.task).keys()
        for index, layer in enumerate(trial.task.model.stack.layers):
            at = chosen[f'model.stack.layers[{index}].choice']
            assert pg.eq(choices[index].candidates[at], layer)


def test_decisions_of_one_layer_are_one_choice_of_their_combinations() -> None:
    made = supernet(blocks().rebind({f'{STACK}[1].attention.num_kv_heads': pg.oneof([1, 2])}))
    assert [choice.path for choice in made.choices] == [
        f'{STACK}[1].attention',
        f'{STACK}[1].feed_forward',
    ]
    one, other = made.experiment.task.model.stack.layers
    assert isinstance(one, TransformerBlock) and isinstance(other, TransformerBlock)
    assert isinstance(one.attention, Attention) and isinstance(other.attention, ChoiceLayer)
    found = [
        (each.num_heads, each.num_kv_heads)
        for each in other.attention.candidates
        if isinstance(each, Attention)
    ]
    assert sorted(found) == list(itertools.product([2, 4], [1, 2]))
    assert isinstance(other.feed_forward, ChoiceLayer)
    assert [type(each) for each in other.feed_forward.candidates] == [FeedForward, GatedFeedForward]


def test_a_choice_within_a_residual_replaces_only_its_layer() -> None:
    inner = pg.oneof([FeedForward(16), GatedFeedForward(16)])
    made = supernet(layers().rebind({STACK: [Residual(inner)]}))
    (layer,) = made.experiment.task.model.stack.layers
    assert isinstance(layer, Residual) and isinstance(layer.layer, ChoiceLayer)


def test_a_choice_around_another_one_has_both() -> None:
    inner = pg.oneof([FeedForward(16), GatedFeedForward(16)])
    residual = Residual(inner, norm_policy=pg.oneof(['pre', 'post']))
    (choice,) = supernet(layers().rebind({STACK: [residual]})).choices
    assert choice.path == f'{STACK}[0]' and len(choice.decisions) == 4


def test_infeasible_candidates_are_left_out() -> None:
    # Two heads, or four, divide evenly over two key heads, and not over three.
    made = supernet(blocks().rebind({f'{STACK}[1].attention.num_kv_heads': pg.oneof([2, 3])}))
    attention, feed_forward = made.choices
    assert [len(each.decisions) for each in made.choices] == [2, 2]
    path = attention.decisions[0] | feed_forward.decisions[0]
    (name,) = [name for name in path if 'kv_heads' in name]
    assert made.numbers(path) is not None
    assert made.numbers({**path, name: 1}) is None


def test_a_supernet_survives_json() -> None:
    made = supernet(layers()).experiment
    again = from_json_text(pg.to_json_str(made), Experiment, 'experiment')
    assert pg.eq(again, made)


def test_a_supernet_writes_checkpoints_and_does_not_decode() -> None:
    made = layers()
    made.rebind({'train.checkpoints': None, 'train.decoding': Decoding(2)})
    train = supernet(made).experiment.train
    assert train.checkpoints is not None and train.decoding is None


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'task.learner.learning_rate': pg.floatv(0.1, 1.0)},
            r'learning_rate: a supernet chooses between layers .* --set task\.learner\.learning',
        ),
        ({'task.model.embedding.dims': pg.oneof([8, 16])}, 'embedding.dims: a supernet chooses'),
        ({'task.model.stack.repeats': pg.oneof([1, 2])}, 'stack.repeats: a supernet chooses'),
        ({STACK: pg.oneof([[FeedForward(16)], []])}, 'stack.layers: a supernet chooses'),
        (
            {STACK: [Residual(Attention(2, logit_cap=pg.floatv(1.0, 2.0)))]},
            r'logit_cap: a supernet needs pg\.oneof',
        ),
        (
            {STACK: [Residual(FeedForward(pg.oneof(list(range(1, 66)))))]},
            r'layers\[0\].layer: its decisions have 65 combinations, .* at most 64',
        ),
        (
            {STACK: [*kinds()[1:], pg.oneof([*kinds(), SharedWithPrevious()])]},
            r'layers\[2\]: SharedWithPrevious has no weights of its own',
        ),
        ({'sub_experiments': {'a': {}, 'b': {}}}, 'sub_experiments: a supernet is one model'),
    ],
)
def test_other_decisions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        supernet(layers().rebind(changes))


def test_values_that_follow_the_decision_of_a_layer_are_refused() -> None:
    follower = Residual(FeedForward(hidden_dims=derived(f'{STACK}[0].layer.hidden_dims')))
    made = layers().rebind({STACK: [Residual(FeedForward(pg.oneof([16, 24]))), follower]})
    with pytest.raises(UserError, match=r'layers\[0\]\.layer: values elsewhere follow its'):
        supernet(made)


def test_running_statistics_are_refused() -> None:
    made = DigitsNas().rebind({'task.learner.learning_rate': 0.1})
    with pytest.raises(UserError, match='running statistics of BatchNorm would be those of all'):
        supernet(made)
