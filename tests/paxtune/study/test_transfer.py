"""Prior studies and forks."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RegularizedEvolution
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.engines.in_process import InProcess
from paxtune.objectives.limits import Limit
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.study import transfer, trial_import
from paxtune.study.plan import SearchPlan
from tests.factories.studies import ask, best, decisions, finish, run
from tests.factories.toys import Block, Dense, NotDense, Toy, search, toy
from trainer.symbolic.errors import UserError


def wider() -> Toy:
    """A changed experiment: one decision more, one less, other candidates."""
    return toy(
        rate=pg.floatv(1e-5, 1.0, 'log'),
        widths=None,
        layer=pg.oneof([Dense(), Dense(16), Dense(32), Block(pg.oneof([1, 2, 4]), 'block')]),
    )


@pytest.mark.pax('add_prior_trials')
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


def test_a_search_killed_before_its_study_was_made_learns_all_the_same(tmp_path: Path) -> None:
    with open_study(tmp_path / 'old', toy()) as source:
        run(source)
    (tmp_path / 'new').mkdir()
    LocalStore(Database(tmp_path / 'new' / 'study.db')).close()  # The database has no study yet.
    plan = SearchPlan.compile(toy())
    study, held = InProcess().open(tmp_path / 'new', plan, [tmp_path / 'old'])
    with held, study:
        assert len(study.record.priors) == 5


def test_a_missing_prior_study_is_refused_before_a_database_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='There is no study'):
        InProcess().open(tmp_path / 'new', SearchPlan.compile(toy()), [tmp_path / 'old'])
    assert not (tmp_path / 'new' / 'study.db').exists()


@pytest.mark.pax('prior_study_ids')
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
            assert {each.source for each in study.record.priors} == {str(tmp_path / 'old')}
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


def test_a_trial_that_the_new_space_would_train_otherwise_is_not_taken(tmp_path: Path) -> None:
    """Where the new experiment has a constant, only trials with that very value are its own."""
    with open_study(tmp_path, toy()) as source:
        run(source)
        rates = [trial.decisions['rate'] for trial in source.trials]
        with open_study(None, toy(rate=rates[2])) as study:
            assert trial_import.fork(source, study) == 1
            assert study.trials[0].reward == source.trials[2].reward
            data = transfer.priors(source, study.space, study.search)
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
