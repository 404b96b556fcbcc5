"""Trials that a search begins with: given ones, files of them, defaults."""

import json
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.config.search import Search
from paxtune.search_space.space import Space
from paxtune.storage.open_study import open_study
from paxtune.study import initial_trials
from tests.factories.studies import (
    decisions,
    run,
)
from tests.factories.toys import Block, Dense, NotDense, Toy, search, toy
from trainer.symbolic.errors import UserError


def test_seeds_come_first_and_what_they_leave_out_is_drawn(tmp_path: Path) -> None:
    given = [{'rate': 0.01, 'layer': 'Dense', 'widths[0]': 1, 'widths[1]': 3}, {'rate': 0.02}]
    with open_study(tmp_path, toy(search=search(initial_trials=given))) as study:
        run(study)
        first, second, *rest = study.trials
        assert first.decisions == given[0]
        assert second.decisions['rate'] == 0.02
        assert set(second.decisions) >= {'rate', 'layer', 'widths[0]', 'widths[1]'}
        assert [each.lineage.origin for each in (first, second)] == ['initial_trials'] * 2
        assert {each.lineage.origin for each in rest} == {'algorithm'}
        expected = decisions(study)
    with open_study(None, toy(search=search(initial_trials=given))) as again:
        run(again)
        assert decisions(again) == expected


@pytest.mark.parametrize(
    ('seed', 'message'),
    [
        ({'rat': 0.1}, r'search\.initial_trials\[0\]: rat is no decision'),
        ({'rate': 7.0}, r'search\.initial_trials\[0\]: rate must be a number from'),
        (
            {'layer': 'Dense', 'layer.heads': 2},
            r'search\.initial_trials\[0\]: layer.heads is inactive',
        ),
    ],
)
def test_a_seed_that_is_not_legal_is_refused_before_anything_is_written(
    tmp_path: Path, seed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        open_study(tmp_path / 'study', toy(search=search(initial_trials=[seed])))
    assert not (tmp_path / 'study').exists()


def test_initial_trials_are_read_from_a_file_or_an_export(tmp_path: Path) -> None:
    path = tmp_path / 'seeds.json'
    path.write_text(json.dumps([{'rate': 0.01}]))
    assert initial_trials.read(str(path)) == [{'rate': 0.01}]
    path.write_text(json.dumps({'trials': [{'decisions': {'rate': 0.02}, 'state': 'COMPLETED'}]}))
    assert initial_trials.read(str(path)) == [{'rate': 0.02}]


@pytest.mark.parametrize(
    'text',
    [
        '{',
        '3',
        '[3]',
        '{"trials": 5}',
        '{"trials": [1]}',
        '[' * 100_000,
        '[{"rate": {"_type": "os.system"}}]',
        '[{"rate]": 0.1}]',
        '[{"rate[=": 0.1}]',
        '9' * 5000,
        '[{"_type": "tests.paxtune.study.test_initial_trials.ToyWithDefaults", "rate": 0.1}]',
    ],
)
def test_a_file_that_holds_no_seeds_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / 'seeds.json'
    path.write_text(text)
    with pytest.raises(UserError, match='--initial_trials='):
        initial_trials.read(str(path))


class ToyWithDefaults(Toy):
    """A toy whose class says what its values are by default."""

    search: Search = search()
    layer: Any = Dense(16)


def test_defaults_are_those_of_the_experiment_before_its_decisions_and_of_its_classes() -> None:
    made = ToyWithDefaults(
        rate=pg.floatv(1e-3, 1.0),
        layer=pg.oneof([Dense(8), Dense(16)]),
        widths=pg.oneof([Block(pg.oneof([1, 2])), None]),
    )
    assert initial_trials.defaults(Space(made), ToyWithDefaults(), '--initial_defaults') == {
        'rate': 0.1,
        'layer': 'Dense(width=16)',
        'widths': None,
    }
    no_default = ToyWithDefaults(rate=pg.floatv(10.0, 20.0))
    with pytest.raises(UserError, match='no decision has a default'):
        initial_trials.defaults(Space(no_default), no_default, '--initial_defaults')


def test_seeds_satisfy_the_constraints_or_are_refused() -> None:
    bound = search(constraints=[NotDense()])
    whole = [{'rate': 0.01, 'layer': 'Dense', 'widths[0]': 1, 'widths[1]': 3}]
    with pytest.raises(UserError, match=r'search\.initial_trials\[0\]: .* no dense layers'):
        open_study(None, toy(search=bound.clone(override={'initial_trials': whole})))
    part = bound.clone(override={'initial_trials': [{'rate': 0.01}] * 4})
    with open_study(None, toy(search=part)) as study:
        run(study)
        assert [trial.decisions['rate'] for trial in study.trials[:4]] == [0.01] * 4
        assert not any(isinstance(trial.materialize().layer, Dense) for trial in study.trials)
