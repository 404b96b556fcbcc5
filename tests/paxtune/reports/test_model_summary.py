"""Models layer by layer: what `paxtune.studies` shows of them, and of what a mutation changed."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.experiment import Tunable
from paxtune.reports.model_summary import Change, Line, changes, grouped, lines, totals
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.record import Lineage
from paxtune.study.study import Study
from tests.factories.studies import ask
from tests.factories.tiny import VOCAB, experiment
from tests.factories.tunables import Failures, Rates
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Identity,
    Layer,
    Residual,
    Stack,
    TransformerLm,
)
from trainer.program.costs import static_costs
from trainer.symbolic.errors import UserError


def line(layer: str, index: int | None = 0, place: str = 'stack', cost: int = 1) -> Line:
    return Line(place, index, layer, cost, 10.0 * cost)


def stack(*names: str, **fields: Any) -> list[Line]:
    return [line(name, index, **fields) for index, name in enumerate(names)]


def told(found: list[Change]) -> list[str]:
    return [f'{each.sign} {each.line.name} {each.line.layer}' for each in found]


# --- Lines ---


def test_equal_neighbours_are_one_line() -> None:
    model = [line('E', None, 'embedding'), *stack('A', 'A', 'B', 'A', 'A', 'A'), *stack('A')]
    found = grouped(model)
    assert [(each.name, each.layer, each.times) for each in found] == [
        ('embedding', 'E', 1), ('stack[0–1]', 'A', 2), ('stack[2]', 'B', 1), ('stack[3–5]', 'A', 3),
        ('stack[0]', 'A', 1),
    ]  # fmt: skip
    assert totals(found) == totals(model) == {'num_params': 8, 'flops_per_token': 80.0}
    dearer = [line('A', 0), line('A', 1, cost=2), line('A', 2, place='decoder')]
    assert grouped(dearer) == dearer
    several = [line('N', None, 'first'), line('N', None, 'second')]
    assert grouped(several) == several


def test_a_layer_is_what_differs_from_its_defaults() -> None:
    some: list[Layer] = [Residual(Attention(2)), Residual(FeedForward(32)), Residual(Identity())]
    made = experiment(
        task__model=TransformerLm(Embedding(VOCAB, 16), Stack(some, repeats=2), logits_cap=30.0)
    )
    found = lines(made)
    assert [(each.name, each.layer) for each in found[:4]] == [
        ('embedding', 'Embedding(vocab_size=32, dims=16)'),
        ('stack[0]', 'Residual(layer=Attention(num_heads=2))'),
        ('stack[1]', 'Residual(layer=FeedForward(hidden_dims=32))'),
        ('stack[2]', 'Residual(layer=Identity)'),
    ]
    assert found[-1].name == 'final_norm'
    assert [each.layer for each in found[1:4]] == [each.layer for each in found[4:7]]
    assert totals(found).items() <= static_costs(made).items()


# --- Changes ---


@pytest.mark.parametrize(
    ('left', 'right', 'wanted'),
    [
        ('AB', 'AB', []),
        ('AB', 'AXB', ['+ stack[1] X']),
        ('AXB', 'AB', ['− stack[1] X']),
        ('AXB', 'AYB', ['− stack[1] X', '+ stack[1] Y']),
        ('ABAB', 'XABAB', ['+ stack[0] X']),
        ('AAB', 'AAXXB', ['+ stack[2–3] X']),
        ('AB', 'BA', ['+ stack[0] B', '− stack[1] B']),
    ],
)
def test_layers_are_aligned_by_what_they_are(left: str, right: str, wanted: list[str]) -> None:
    assert told(changes(stack(*left), stack(*right))) == wanted


def test_the_same_layer_at_another_price_differs() -> None:
    narrow = [*stack('A', 'A', 'B'), line('N', None, 'norm')]
    wide = [*stack('A', 'A', 'B', cost=2), line('N', None, 'norm')]
    assert told(changes(narrow, wide)) == [
        '− stack[0–1] A', '− stack[2] B', '+ stack[0–1] A', '+ stack[2] B',
    ]  # fmt: skip
    assert [each.line.num_params for each in changes(narrow, wide)] == [1, 1, 2, 2]


def test_layers_of_other_places_are_other_layers() -> None:
    left, right = stack('A', place='encoder'), stack('A', place='decoder')
    assert told(changes(left, right)) == ['− encoder[0] A', '+ decoder[0] A']


# --- Of trials ---


def Evolving(**fields: Any) -> Tunable:
    """Up to three layers of two kinds."""
    layer = pg.oneof([Attention(2), FeedForward(32), Identity()])
    some = [Residual(layer.clone(deep=True)) for _ in range(3)]
    model = TransformerLm(Embedding(VOCAB, pg.oneof([16, 24])), Stack(some))
    made = Rates()
    made.rebind({'task.model': model, **fields})
    return made


def decided(*layers: str, dims: int = 16) -> dict[str, Any]:
    """The decisions for some layers."""
    return {
        **{f'task.model.stack.layers[{i}].layer': name for i, name in enumerate(layers)},
        'task.model.embedding.dims': dims,
        'task.learner.learning_rate': 0.01,
    }


def complete(study: Study, decisions: dict[str, Any], **lineage: Any) -> None:
    """Adds a completed trial; the first one is the best."""
    number = study.start(study.space.parse(decisions), {}).id
    study.store.apply(
        number, lambda record, _: dataclasses.replace(record, lineage=Lineage(**lineage))
    )
    trial = study.open_trial(number)
    trial.report(6, {'eval/log_pplx': float(trial.id)})
    trial.complete()


ATTENTION, FFN, NOTHING = 'Attention(num_heads=2)', 'FeedForward(hidden_dims=32)', 'Identity'


@pytest.fixture(scope='module')
def evolved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of architectures: 2 is a mutation of 1, 3 of 2, and 4 is wider than 1."""
    directory = tmp_path_factory.mktemp('evolved')
    with open_study(directory, Evolving()) as study:
        complete(study, decided(ATTENTION, FFN, FFN))
        complete(study, decided(ATTENTION, ATTENTION, FFN), parent=1)
        complete(study, decided(ATTENTION, ATTENTION, FFN), parent=2)
        complete(study, decided(ATTENTION, FFN, FFN, dims=24))
    return directory


def test_show_has_a_line_for_each_layer(evolved: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('show', evolved, '--trial=1', '--format=json'))
    (model,) = content['architecture']
    with load_study(evolved) as study:
        costs = static_costs(study.trial(1).materialize())
    assert model['num_params'] == costs['num_params']
    assert model['flops_per_token'] == costs['flops_per_token']
    assert [(row['layer'], row['times']) for row in model['layers']] == [
        ('embedding', 1), ('stack[0]', 1), ('stack[1–2]', 2), ('final_norm', 1),
    ]  # fmt: skip
    assert sum(row['num_params'] for row in model['layers']) == costs['num_params']
    assert sum(row['share'] for row in model['layers']) == pytest.approx(1)
    out = shown('show', evolved, '--trial=1')
    rows = out.partition('Architecture')[2].splitlines()
    assert rows[2].split()[0] == 'embedding'
    assert rows[4].split()[:3] == [
        'stack[1–2]',
        '×2',
        'Residual(layer=FeedForward(hidden_dims=32))',
    ]
    assert rows[-1].split() == [
        'all', f'{costs["num_params"]:,.0f}', f'{costs["flops_per_token"]:,.0f}', '100.0%',
    ]  # fmt: skip


def test_the_best_trial_is_named_so(evolved: Path, shown: Callable[..., str]) -> None:
    assert shown('show', evolved, '--trial=best') == shown('show', evolved, '--trial=1')


@pytest.mark.slow
def test_diff_with_the_parent_is_what_a_mutation_changed(
    evolved: Path, shown: Callable[..., str]
) -> None:
    content = json.loads(shown('diff', evolved, 2, '--format=json'))
    assert (content['left']['trial'], content['right']['trial']) == (1, 2)
    (model,) = content['architecture']
    assert [(row['change'], row['layer'], row['component']) for row in model['layers']] == [
        ('−', 'stack[1]', 'Residual(layer=FeedForward(hidden_dims=32))'),
        ('+', 'stack[1]', 'Residual(layer=Attention(num_heads=2))'),
    ]
    with load_study(evolved) as study:
        before, after = (static_costs(study.trial(n).materialize()) for n in (1, 2))
    assert model['costs'] == [
        {'cost': name, 'left': before[name], 'right': after[name]}
        for name in ('num_params', 'flops_per_token')
    ]
    out = shown('diff', evolved, 2)
    assert 'Layers that differ: − in trial 1, + in trial 2' in out
    assert f'{after["num_params"]:,.0f}' in out.partition('Costs')[2]
    assert shown('diff', evolved, 1, 2) == out


def test_a_wider_model_differs_in_all_its_layers(evolved: Path, shown: Callable[..., str]) -> None:
    content = json.loads(shown('diff', evolved, 1, 4, '--format=json'))
    signs = [row['change'] for row in content['architecture'][0]['layers']]
    assert signs.count('−') == signs.count('+') == 4


def test_equal_trials_have_no_layers_that_differ(evolved: Path, shown: Callable[..., str]) -> None:
    assert shown('diff', evolved, 3).endswith('Their experiments are equal.\n')


def test_a_trial_without_a_parent_is_compared_with_one_that_is_named(
    evolved: Path, shown: Callable[..., str]
) -> None:
    with pytest.raises(UserError, match='trial 1 was derived from no other one: name'):
        shown('diff', evolved, 1)
    with pytest.raises(UserError, match='diff compares two trials, not 3'):
        shown('diff', evolved, 1, 2, 3)


def test_a_child_of_weights_is_compared_with_where_they_are_from(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with open_study(tmp_path, Rates()) as study:
        complete(study, {'task.learner.learning_rate': 0.01})
        complete(study, {'task.learner.learning_rate': 0.02}, warm_start=1)
    content = json.loads(shown('diff', tmp_path, 2, '--format=json'))
    assert (content['left']['trial'], content['right']['trial']) == (1, 2)
    assert content['architecture'][0]['layers'] == []


@pytest.mark.slow
def test_sub_experiments_have_a_table_each(tmp_path: Path, shown: Callable[..., str]) -> None:
    parts = {'narrow': {}, 'deep': {'task.model.stack.repeats': 2}}
    with open_study(tmp_path, Evolving(sub_experiments=parts)) as study:
        for layers in ((ATTENTION, NOTHING, NOTHING), (FFN, NOTHING, NOTHING)):
            study.start(study.space.parse(decided(*layers)), {}).fail('not trained')
    content = json.loads(shown('show', tmp_path, '--trial=1', '--format=json'))
    narrow, deep = content['architecture']
    assert [narrow['sub_experiment'], deep['sub_experiment']] == ['narrow', 'deep']
    attention = [row for row in deep['layers'] if 'Attention' in row['component']]
    assert [row['layer'] for row in attention] == ['stack[0]', 'stack[3]']
    assert 'Architecture of deep' in shown('show', tmp_path, '--trial=1')
    out = shown('diff', tmp_path, 1, 2)
    assert 'Layers of narrow that differ' in out and 'Costs of deep' in out


@pytest.mark.parametrize(
    ('how', 'heads', 'reason'),
    [
        ('none', 3, '3 heads do not divide the width 16'),
        ('raise', 2, 'this layer cannot be built for a long reason'),
    ],
)
def test_a_model_that_cannot_be_traced_has_a_reason(
    tmp_path: Path, shown: Callable[..., str], how: str, heads: int, reason: str
) -> None:
    block = 'task.model.stack.layers[0]'
    with open_study(tmp_path, Failures()) as study:
        for width in (heads, 2):
            decisions = {f'{block}.attention.num_heads': width, f'{block}.feed_forward.how': how}
            study.start(study.space.parse(decisions), {}).fail('it does not fit')
    out = shown('show', tmp_path, '--trial=1')
    assert 'it does not fit' in out.partition('History')[2]
    assert reason in out.splitlines()[-1]
    (model,) = json.loads(shown('show', tmp_path, '--trial=1', '--format=json'))['architecture']
    assert reason in model['problem']
    if heads == 3:
        assert reason in shown('diff', tmp_path, 1, 2).splitlines()[-1]


def test_a_study_without_completed_trials_has_no_best(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with open_study(tmp_path, Rates()) as study:
        ask(study)
    with pytest.raises(UserError, match=r'no trial of .* was completed'):
        shown('show', tmp_path, '--trial=best')
