"""Seeds, prior studies, forks, and trials that come from outside."""

import json
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import MedianStopping
from paxtune.search_space.constraints import Constraint, Infeasible
from paxtune.search_space.space import Space
from paxtune.storage.open_study import open_study
from paxtune.study import export, initial_trials, transfer, trial_import
from paxtune.study.study import Study
from tests.paxtune.studies import ask, best, decisions, finish, run, run_all_kinds
from tests.paxtune.toys import Block, Dense, Toy, search, toy
from trainer.symbolic.errors import UserError

# --- Seeds ---


def test_seeds_come_first_and_what_they_leave_out_is_drawn(tmp_path: Path) -> None:
    given = [{'rate': 0.01, 'layer': 'Dense', 'widths[0]': 1, 'widths[1]': 3}, {'rate': 0.02}]
    with open_study(tmp_path, toy(search=search(initial_trials=given))) as study:
        run(study)
        first, second, *rest = study.trials
        assert first.decisions == given[0]
        assert second.decisions['rate'] == 0.02
        assert set(second.decisions) >= {'rate', 'layer', 'widths[0]', 'widths[1]'}
        assert [each.lineage.origin for each in (first, second)] == ['seed'] * 2
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
        '[{"_type": "tests.paxtune.study.test_transfer.Default", "rate": 0.1}]',
    ],
)
def test_a_file_that_holds_no_seeds_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / 'seeds.json'
    path.write_text(text)
    with pytest.raises(UserError, match='--initial_trials='):
        initial_trials.read(str(path))


class Default(Toy):
    """A toy whose class says what its values are by default."""

    search: Search = search()
    layer: Any = Dense(16)


def test_defaults_are_those_of_the_experiment_before_its_decisions_and_of_its_classes() -> None:
    made = Default(
        rate=pg.floatv(1e-3, 1.0),
        layer=pg.oneof([Dense(8), Dense(16)]),
        widths=pg.oneof([Block(pg.oneof([1, 2])), None]),
    )
    assert initial_trials.defaults(Space(made), Default(), '--initial_defaults') == {
        'rate': 0.1,
        'layer': 'Dense(width=16)',
        'widths': None,
    }
    no_default = Default(rate=pg.floatv(10.0, 20.0))
    with pytest.raises(UserError, match='no decision has a default'):
        initial_trials.defaults(Space(no_default), no_default, '--initial_defaults')


class NotDense(Constraint):
    """A constraint that forbids a good part of the space."""

    def require(self, experiment: Any) -> None:
        if isinstance(experiment.layer, Dense):
            raise Infeasible('no dense layers')


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


# --- Added, retried, imported ---


def test_added_trials_run_before_new_ones_and_do_not_change_them(tmp_path: Path) -> None:
    with open_study(tmp_path / 'a', toy()) as study:
        added = study.add({'rate': 0.05})
        assert (added.state, added.lineage.origin) == ('REQUESTED', 'added')
        trial = ask(study)
        assert (trial.id, trial.state, trial.decisions) == (1, 'ACTIVE', added.decisions)
        with pytest.raises(UserError, match='rate must be'):
            study.add({'rate': 'fast'})


def test_a_retry_is_a_new_trial_that_names_the_old_one(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study:
        first = ask(study)
        with pytest.raises(UserError, match='only one that has ended'):
            study.retry(1)
        first.fail('no memory')
        retry = study.retry(1)
        assert (retry.id, retry.lineage.retry_of, retry.decisions) == (2, 1, first.decisions)
        again = ask(study)
        assert again.id == 2
        finish(again)
        assert study.trials[1].lineage.retry_of == 1
        with pytest.raises(UserError, match='has no trial 9'):
            study.retry(9)


def whole(directory: Path) -> Study:
    """A study with a completed, a stopped, an infeasible and an unfinished trial."""
    study = open_study(directory, toy(search=search(scheduler=MedianStopping())))
    run_all_kinds(study)
    return study


def test_an_export_can_be_imported(tmp_path: Path) -> None:
    with whole(tmp_path / 'from') as source, open_study(tmp_path / 'to', toy()) as target:
        data = json.loads(json.dumps([export.content(trial) for trial in source.trials]))
        assert trial_import.import_trials(target, data, 'a file') == 3
        assert trial_import.import_trials(target, data, 'a file') == 0
        for old, new in zip(source.trials[:3], target.trials, strict=True):
            assert (old.state, old.decisions, old.rewards) == (
                new.state,
                new.decisions,
                new.rewards,
            )
            assert (old.stop_reason, old.reason) == (new.stop_reason, new.reason)
            assert old.measurements == new.measurements
            assert new.lineage.origin == f'a file#{old.id}'
        assert ask(target).id == 4


def test_attempts_and_history_are_exported_and_need_not_be_there(tmp_path: Path) -> None:
    with whole(tmp_path) as source, open_study(None, toy()) as target:
        data = [export.content(trial) for trial in source.trials]
        events = [[event['event'] for event in each['history']] for each in data]
        assert events == [['claimed', 'ended']] * 3 + [['claimed']]
        assert {each['attempt'] for each in data} == {1}
        # What happened elsewhere is not this study's, and who exported it may not have known.
        older = [
            {k: v for k, v in each.items() if k not in ('attempt', 'history')} for each in data
        ]
        assert trial_import.import_trials(target, data[:1] + older[1:], 'a file') == 3
        assert [trial.history for trial in target.trials] == [[]] * 3


def test_the_hours_of_imported_trials_are_not_this_studys(tmp_path: Path) -> None:
    with (
        whole(tmp_path) as source,
        open_study(None, toy(search=search(budget=Budget(5, hours=1)))) as target,
    ):
        data = [export.content(trial) | {'seconds': 7200.0} for trial in source.trials]
        trial_import.import_trials(target, data, 'a file')
        assert target.trials[0].seconds == 7200
        assert not target.is_done
        for seconds in (float('nan'), -1.0):
            broken = [data[0] | {'seconds': seconds, 'trial': 99}]
            with pytest.raises(UserError, match='not a trial'):
                trial_import.import_trials(target, broken, 'a file')


def _deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(2000):
        found = [found]
    return found


@pytest.mark.parametrize(
    'change',
    [
        {'trial': 'x' * 10_000},
        {'trial': None},
        {'state': 'INFEASIBLE', 'reason': '\ud800'},
        {'state': 'INFEASIBLE', 'reason': {'_type': 'os.system'}},
        {'stopped': True, 'reason': '\ud800'},
        {'metrics': {'loss': 1.0, '\ud800': 1.0}},
        {'metrics': {'loss': 10**400}},
        {'decisions': {'layer': _deep()}},
    ],
)
@pytest.mark.fast(4)
def test_an_invalid_export_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with whole(tmp_path) as source, open_study(None, toy()) as target:
        trial = json.loads(json.dumps(export.content(source.trials[0])))
        changed = trial | change | {'decisions': trial['decisions'] | change.get('decisions', {})}
        with pytest.raises(UserError, match='not a trial') as raised:
            trial_import.import_trials(
                target, [trial, changed | {'trial': change.get('trial', 9)}], 'x'
            )
        assert len(str(raised.value)) < 5000
        assert not target.trials


def test_a_file_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    with whole(tmp_path) as source, open_study(None, toy()) as target:
        data = [export.content(source.trials[0])]
        assert trial_import.import_trials(target, data, '/data/\udcff') == 1
        assert trial_import.import_trials(target, data, '/data/\udcff') == 0
        assert target.trials[0].lineage.origin == r'/data/\udcff#1'


@pytest.mark.parametrize(
    'text', ['{"trials": [], "data": [1]}', '{"trials": {}}', '[]', '9' * 5000]
)
def test_a_file_that_holds_no_study_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / 'export.json'
    path.write_text(text)
    with pytest.raises(UserError, match=r'export\.json: '):
        export.read(str(path))


def test_rewards_of_imported_trials_are_made_anew(tmp_path: Path) -> None:
    accuracy = search(objective=MetricReward('maximize', 'accuracy'))
    with whole(tmp_path / 'from') as source, open_study(None, toy(search=accuracy)) as target:
        data = [export.content(trial) for trial in source.trials]
        assert trial_import.import_trials(target, data, 'a file') == 3
        assert target.trials[0].reward == source.trials[0].metrics['accuracy']


# --- Other studies ---


def wider() -> Toy:
    """A changed experiment: one decision more, one less, other candidates."""
    return toy(
        rate=pg.floatv(1e-5, 1.0, 'log'),
        widths=None,
        layer=pg.oneof([Dense(), Dense(16), Dense(32), Block(pg.oneof([1, 2, 4]), 'block')]),
    )


def test_a_fork_begins_with_the_old_studys_trials(tmp_path: Path) -> None:
    with open_study(tmp_path / 'old', toy()) as source:
        run(source)
        with open_study(tmp_path / 'new', wider()) as study:
            count = trial_import.fork(source, study)
            assert count == len(study.trials) == 5
            assert trial_import.fork(source, study) == 0
            for old, new in zip(source.trials, study.trials, strict=True):
                assert new.decisions['rate'] == old.decisions['rate']
                assert new.decisions['layer'] == old.decisions['layer']
                assert 'widths[0]' not in new.decisions
                assert new.reward == old.reward


def test_a_decision_that_the_old_study_did_not_make_is_taken_from_its_experiment(
    tmp_path: Path,
) -> None:
    old = toy(layer=Dense(16), widths=None)
    new = toy(layer=pg.oneof([Dense(8), Dense(16)]), widths=None)
    with open_study(tmp_path, old) as source, open_study(None, new) as study:
        run(source)
        assert trial_import.fork(source, study) == 5
        assert {trial.decisions['layer'] for trial in study.trials} == {'Dense(width=16)'}
        other = toy(layer=pg.oneof([Dense(4), Dense(2)]), widths=None)
        with open_study(None, other) as none:
            assert trial_import.fork(source, none) == 0


def test_an_algorithm_learns_from_prior_studies(tmp_path: Path) -> None:
    evolution = RegularizedEvolution(population_size=5, tournament_size=5)
    with open_study(tmp_path / 'old', toy()) as source:
        run(source)
        leader = best(source)
        made = toy(search=search(algorithm=evolution))
        with open_study(tmp_path / 'new', made, priors=[source]) as study:
            first = ask(study)
            assert first.lineage.parent is None
            differing = [
                path
                for path in {*first.decisions, *leader.decisions}
                if first.decisions.get(path) != leader.decisions.get(path)
            ]
            assert {path.split('.')[0].split('[')[0] for path in differing} <= {
                'rate',
                'layer',
                'widths',
            }
            assert len({path.split('.')[0].split('[')[0] for path in differing}) == 1
            finish(first)
            run(study)
            expected = decisions(study)
    # What was learnt is part of the study: the other one may be gone.
    with open_study(tmp_path / 'new', made) as resumed:
        assert decisions(resumed) == expected


def test_prior_trials_keep_their_order(tmp_path: Path) -> None:
    """The population of an evolution is of the youngest trials, also of another study's."""
    with open_study(tmp_path, toy(search=search(budget=Budget(4)))) as source:
        run(source)
        youngest = source.trials[-1].decisions
        evolution = RegularizedEvolution(population_size=1, tournament_size=1)
        made = toy(search=search(algorithm=evolution))
        with open_study(None, made, priors=[source]) as study:
            child = ask(study).decisions
            changed = {path for path in youngest if child.get(path) != youngest[path]}
            assert len({path.split('.')[0].split('[')[0] for path in changed}) == 1


@pytest.mark.slow
def test_trials_of_other_studies_are_copied_once(tmp_path: Path) -> None:
    space, old = {'x': pg.floatv(0.0, 1.0)}, tmp_path / 'old'
    common: dict[str, Any] = {'space': space, 'objective': 'minimize'}

    def goes_on(count: int) -> list[dict[str, Any]]:
        with tune(
            lambda v: v.x,
            **common,
            num_trials=count,
            fork_study=old,
            prior_studies=[old],
            job_log_dir=tmp_path / 'new',
        ) as study:
            return decisions(study)

    tune(lambda v: v.x, **common, num_trials=2, job_log_dir=old).close()
    before = goes_on(4)
    tune(lambda v: v.x, **common, num_trials=3, job_log_dir=old).close()
    assert goes_on(5)[:4] == before


def test_a_prior_study_that_has_nothing_to_say_is_refused(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as source:
        ask(source).fail('no memory')
        with pytest.raises(UserError, match='--prior_studies: none of the 1 trials'):
            open_study(None, toy(), priors=[source])


@pytest.mark.slow
def test_tune_takes_both(tmp_path: Path) -> None:
    space = {'x': pg.floatv(0.0, 10.0)}

    def square(values: Any) -> float:
        return float((values.x - 3) ** 2)

    common: dict[str, Any] = {'space': space, 'objective': 'minimize'}
    tune(square, **common, num_trials=6, job_log_dir=tmp_path / 'old').close()
    evolution = RegularizedEvolution(population_size=4, tournament_size=4)
    with tune(
        square,
        **common,
        num_trials=9,
        algorithm=evolution,
        prior_studies=[tmp_path / 'old'],
        fork_study=tmp_path / 'old',
        job_log_dir=tmp_path / 'new',
    ) as study:
        assert [trial.lineage.origin for trial in study.trials[:6]] == [
            f'{tmp_path / "old"}#{number}' for number in range(1, 7)
        ]
        assert len(study.trials) == 9


# --- Tables ---


def test_a_study_as_a_table(tmp_path: Path) -> None:
    with whole(tmp_path) as study:
        frame = study.to_pandas()
        assert list(frame.index) == [1, 2, 3, 4]
        assert list(frame.state) == ['COMPLETED', 'COMPLETED', 'INFEASIBLE', 'ACTIVE']
        assert list(frame.stopped) == [False, True, False, False]
        assert frame.loc[1, 'loss'] == study.trials[0].reward
        assert frame.loc[1, 'metrics.accuracy'] == study.trials[0].metrics['accuracy']
        assert frame.loc[2, 'decisions.rate'] == study.trials[1].decisions['rate']
        assert frame['loss'].isna().tolist() == [False, False, True, True]
    with open_study(None, toy()) as empty:
        assert len(empty.to_pandas()) == 0


def test_a_trial_that_the_new_space_would_train_otherwise_is_not_taken(tmp_path: Path) -> None:
    """Where the new experiment has a constant, only trials with that very value are its own."""
    with open_study(tmp_path, toy()) as source:
        run(source)
        rates = [trial.decisions['rate'] for trial in source.trials]
        with open_study(None, toy(rate=rates[2])) as study:
            assert trial_import.fork(source, study) == 1
            assert study.trials[0].reward == source.trials[2].reward
            data = transfer.priors([source], study.space, study.search)
            assert [each.scores for each in data] == [source.trials[2].scores]


def test_trials_that_the_new_study_would_not_suggest_are_not_taken(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as source:
        run(source)
        dense = sum(isinstance(trial.materialize().layer, Dense) for trial in source.trials)
        bound = toy(search=search(constraints=[NotDense()]))
        with open_study(None, bound) as study:
            assert 0 < dense < 5
            assert trial_import.fork(source, study) == 5 - dense
        losses = sorted(trial.metrics['loss'] for trial in source.trials)
        limited = toy(search=search(limits=[Limit('loss', at_most=losses[1])]))
        with open_study(None, limited) as study:
            assert trial_import.fork(source, study) == 2


def test_a_fork_that_takes_nothing_is_refused(tmp_path: Path) -> None:
    def loss(values: Any) -> float:
        return float(values.x)

    tune(
        loss, space={'x': pg.oneof([1, 2])}, objective='minimize', job_log_dir=tmp_path / 'old'
    ).close()
    with pytest.raises(UserError, match='--fork_study: none of the 2 trials'):
        tune(
            loss,
            space={'x': pg.oneof([3, 4])},
            objective='minimize',
            fork_study=tmp_path / 'old',
            job_log_dir=tmp_path / 'new',
        )
