import math

import pyglove as pg
import pytest
from vizier.service import pyvizier as svz

from paxtune.algorithms import (
    CMAES,
    NSGA2,
    AnyMutation,
    Grid,
    HillClimbing,
    QuasiRandom,
    RandomSearch,
    RegularizedEvolution,
    UniformCrossover,
)
from paxtune.config.budget import Budget
from paxtune.objectives.rewards import MetricReward, NonFiniteRewardError
from paxtune.schedulers import MedianStopping, Stop
from paxtune.search_space.constraints import Requires
from paxtune.search_space.decisions import to_dna
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from tests.factories.studies import ask, best, decisions, finish, run
from tests.factories.toys import Dense, search, toy
from trainer.symbolic.errors import UserError


def test_a_study_runs_to_its_number_of_trials(study):
    trials = run(study)
    assert [trial.id for trial in trials] == list(range(1, 6))
    assert {trial.state for trial in trials} == {'COMPLETED'}
    assert study.ask() is None
    assert best(study).reward == min(trial.reward for trial in trials if trial.reward)


@pytest.mark.pax('`num_examples` counts all', 'max_num_trials')
def test_an_open_study_sees_a_larger_number_of_trials(tmp_path):
    with open_study(tmp_path, toy(search=search(budget=Budget(2)))) as study:
        run(study)
    with open_study(tmp_path, toy(search=search(budget=Budget(5)))) as study:
        assert len(run(study)) == 5
    with open_study(tmp_path, toy(search=search(budget=Budget(3)))) as study:
        assert study.ask() is None


@pytest.mark.parametrize(
    'algorithm',
    [
        RandomSearch(),
        QuasiRandom(),
        Grid(shuffle=True),
        HillClimbing(starts=2),
        RegularizedEvolution(3, 2),
        RegularizedEvolution(2, 2, mutation=AnyMutation(), crossover=UniformCrossover()),
        NSGA2(population_size=2),
        CMAES(population_size=4),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
@pytest.mark.fast(4)
@pytest.mark.contract
def test_the_same_seed_gives_the_same_trials_in_one_go_or_in_several(tmp_path, algorithm):
    tunable = toy(search=search(algorithm=algorithm, budget=Budget(5), seed=7))
    with open_study(tmp_path / 'whole', tunable) as whole:
        run(whole)
        expected = decisions(whole)
    for number in range(5):
        with open_study(tmp_path / 'parts', tunable) as part:
            assert len(part.trials) == number
            finish(ask(part))
    with load_study(tmp_path / 'parts') as part:
        assert decisions(part) == expected
    other = toy(search=search(algorithm=algorithm, budget=Budget(5), seed=8))
    with open_study(tmp_path / 'other', other) as study:
        assert ask(study).decisions != expected[0]


@pytest.mark.pax('In memory: named')
def test_studies_in_one_process_do_not_touch_each_other(tmp_path):
    with open_study(tmp_path / 'a', toy()) as one, open_study(tmp_path / 'b', toy()) as other:
        run(one)
        assert other.trials == []
        assert len(one.trials) == 5


@pytest.mark.pax('Trials are capped')
@pytest.mark.parametrize(('constraints', 'count'), [([], 6), ([Requires('layer < 3', 'wide')], 4)])
def test_a_small_space_is_exhausted(tmp_path, constraints, count):
    space = {'rate': 0.1, 'layer': pg.oneof([1, 2, 3]), 'widths': pg.permutate([1, 2])}
    tunable = toy(search=search(budget=Budget(50), constraints=constraints), **space)
    with open_study(tmp_path, tunable) as study:
        assert study.space.size == 6
        while (trial := study.ask()) is not None:
            assert not study.exhausted or trial.id == count
            finish(trial)
        assert study.exhausted
        assert len({tuple(each.items()) for each in decisions(study)}) == count


def test_evolution_records_parents(tmp_path):
    tunable = toy(search=search(algorithm=RegularizedEvolution(4, 2), budget=Budget(8)))
    with open_study(tmp_path, tunable) as study:
        parents = [trial.lineage.parent for trial in run(study)]
    assert parents[:4] == [None] * 4
    assert all(parent in range(1, 8) for parent in parents[4:])


def test_a_maximizing_evolution_sees_better_as_more(tmp_path):
    reward = MetricReward(metric='accuracy', goal='maximize')
    algorithm = RegularizedEvolution(4, 4)
    tunable = toy(search=search(algorithm=algorithm, budget=Budget(5), objective=reward))
    with open_study(tmp_path, tunable) as study:
        trials = run(study)
        first = max(trials[:4], key=lambda trial: trial.reward or 0.0)
        assert trials[4].lineage.parent == first.id
        assert first.reward == max(1 - trial.decisions['rate'] for trial in trials[:4])


# --- Trials ---


def test_a_trial_holds_decisions_dna_experiment_and_times(study):
    trial = ask(study)
    assert trial.view.state == 'ACTIVE'
    assert not trial.resumed
    assert set(trial.decisions) >= {'rate', 'layer', 'widths[0]', 'widths[1]'}
    experiment = trial.materialize()
    assert experiment.rate == trial.decisions['rate']
    dna = to_dna(study.space.spec, trial.view.by_id)
    assert pg.eq(pg.materialize(study.value, dna), experiment)
    assert not trial.view.is_terminal
    finish(trial)
    assert trial.view.completed is not None
    assert trial.view.created <= trial.view.completed
    assert study.trials[0].completed == trial.view.completed


def test_an_interrupted_trial_comes_first(tmp_path):
    with open_study(tmp_path, toy()) as study:
        finish(ask(study))
        trial = ask(study)
        trial.report(10, {'loss': 0.5, 'accuracy': 0.1})
    with open_study(tmp_path, toy()) as study:
        again = ask(study)
        assert again.resumed and (again.id, again.decisions) == (trial.id, trial.decisions)
        assert [each.step for each in again.view.measurements] == [10]
        again.report(10, {'loss': 0.7})
        again.report(20, {'loss': 0.4})
        again.complete()
        assert [(each.step, each.reward) for each in study.trials[1].measurements] == [
            (10, 0.5),
            (20, 0.4),
        ]
        assert study.trials[1].measurements[0].metrics == {'loss': 0.5, 'accuracy': 0.1}
        assert not ask(study).resumed


def test_an_interrupted_trial_is_finished_even_when_fewer_are_wanted(tmp_path):
    with open_study(tmp_path, toy()) as study:
        finish(ask(study))
        ask(study)
    with open_study(tmp_path, toy(search=search(budget=Budget(1)))) as study:
        trial = ask(study)
        assert (trial.id, trial.resumed) == (2, True)
        finish(trial)
        assert study.ask() is None


@pytest.mark.pax('The final measurement')
def test_the_reward_is_that_of_the_last_step(study):
    trial = ask(study)
    trial.report(20, {'loss': 0.4})
    trial.report(10, {'loss': 0.2})
    trial.complete()
    assert trial.view.reward == 0.4
    assert [each.step for each in study.trials[0].measurements] == [10, 20]


def test_a_trial_ends_exactly_once(study):
    trial = ask(study)
    trial.report(10, {'loss': 1.0})
    other = study.open_trial(1)
    trial.complete()
    for end in (other.complete, lambda: other.fail('x'), lambda: other.stop('x'), trial.complete):
        with pytest.raises(RuntimeError, match='trial 1 is COMPLETED already'):
            end()
    with pytest.raises(RuntimeError, match='COMPLETED already'):
        other.report(20, {'loss': 1.0})
    assert len(other.view.measurements) == 1
    failed = ask(study)
    failed.fail('diverged')
    with pytest.raises(RuntimeError, match='INFEASIBLE already'):
        failed.report(10, {'loss': 1.0})
    assert [trial.state for trial in study.trials] == ['COMPLETED', 'INFEASIBLE']


def test_an_infeasible_trial_has_a_reason_and_no_reward(study):
    trial = ask(study)
    trial.report(10, {'loss': 1e-9})
    trial.fail('out of memory')
    finish(ask(study))
    (failed, _) = study.trials
    assert (failed.state, failed.reason) == ('INFEASIBLE', 'out of memory')
    assert failed.reward is None
    assert failed.completed is not None
    assert best(study).id == 2


def test_a_stopped_trial_is_completed_and_never_the_best(study):
    trial = ask(study)
    trial.report(10, {'loss': 1e-9})
    trial.stop('worse than the median')
    finish(ask(study))
    (stopped, _) = study.trials
    assert (stopped.state, stopped.reward) == ('COMPLETED', 1e-9)
    assert stopped.stop_reason == 'worse than the median'
    assert best(study).id == 2


def test_the_first_of_equals_is_the_best(study):
    for _ in range(3):
        trial = ask(study)
        trial.report(10, {'loss': 1.0})
        trial.complete()
    assert best(study).id == 1


def test_a_trial_without_measurements_is_not_completed(study):
    trial = ask(study)
    for end in (trial.complete, lambda: trial.stop('x')):
        with pytest.raises(RuntimeError, match='nothing was measured'):
            end()
    assert study.trials[0].state == 'ACTIVE'
    assert study.trials[0].stop_reason is None
    assert study.best is None


def test_a_step_that_was_reported_before_is_left_as_it_is(study):
    trial = ask(study)
    trial.report(10, {'loss': 1.0})
    trial.report(20, {'loss': 0.5})
    trial.report(10, {'loss': math.nan})
    assert trial.step == 20
    trial.report(20, {})
    assert trial.step == 20
    assert [each.reward for each in study.trials[0].measurements] == [1.0, 0.5]


def test_a_study_is_done_when_all_its_trials_are_terminal(study):
    assert not study.is_done
    for _ in range(4):
        finish(ask(study))
    last = ask(study)
    assert not study.is_done
    finish(last)
    assert study.is_done


@pytest.mark.pax(13, 'NaN reward at a', 'Infinite reward')
@pytest.mark.parametrize('loss', [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_not_written(study, loss):
    trial = ask(study)
    with pytest.raises(NonFiniteRewardError):
        trial.report(10, {'loss': loss})
    assert study.trials[0].measurements == []
    trial.fail('not finite')
    assert study.trials[0].state == 'INFEASIBLE'


def test_other_metrics_that_are_not_finite_are_noted_by_name(study):
    trial = ask(study)
    trial.report(10, {'loss': 1.0, 'b': math.nan, 'c': 1.0})
    trial.report(20, {'loss': 1.0, 'a': -math.inf, 'b': math.nan, 'c': 1.0})
    assert sorted(trial.view.record.non_finite) == ['a', 'b']
    assert [dict(each.metrics) for each in trial.view.measurements] == [{'loss': 1.0, 'c': 1.0}] * 2


def test_metrics_come_back_to_the_last_bit(study):
    trial = ask(study)
    metrics = {'loss': 0.1 + 0.2, 'tiny': 5e-324, 'huge': 1.7976931348623157e308}
    trial.report(10, metrics)
    trial.complete()
    assert dict(study.trials[0].measurements[0].metrics) == metrics
    assert study.trials[0].reward == metrics['loss']


def test_a_metric_cannot_take_the_name_of_the_reward(study):
    with pytest.raises(ValueError, match="no metric can be called '\\$reward'"):
        ask(study).report(10, {'loss': 1.0, '$reward': 2.0})


def test_metadata_of_trials(study):
    trial = ask(study)
    trial.set_metadata({'directory': '0001', 'threads': '2'})
    assert trial.view.record.metadata == {'directory': '0001', 'threads': '2'}
    finish(trial)
    trial.set_metadata({'threads': '4'})
    assert study.trial(1).record == trial.view.record
    assert trial.view.record.metadata == {'directory': '0001', 'threads': '4'}


# --- Early stopping ---


def test_early_stopping_compares_with_completed_and_stopped_trials_only(tmp_path):
    stopping = MedianStopping(min_trials=2)
    with open_study(tmp_path, toy(search=search(scheduler=stopping))) as study:
        _measured(study, 1.0).complete()
        _measured(study, 0.0).fail('because')
        _measured(study, 1.0).stop('because')
        trial = ask(study)
        assert study.decide(trial) is None
        trial.report(10, {'loss': 1.1})
        assert study.decide(trial) == Stop(
            'best reward 1.1 up to step 10 is worse than 1, the median of 2 trials there'
        )


def _measured(study: Study, loss: float) -> RunningTrial:
    trial = ask(study)
    trial.report(10, {'loss': loss})
    assert study.decide(trial) is None
    return trial


@pytest.mark.pax('Policies recover from')
def test_a_resumed_trial_is_judged_at_the_step_that_it_reports_again(tmp_path):
    tunable = toy(search=search(scheduler=MedianStopping(min_trials=1)))
    with open_study(tmp_path, tunable) as study:
        trial = ask(study)
        trial.report(10, {'loss': 1.0})
        trial.report(20, {'loss': 0.5})
        trial.complete()
        trial = ask(study)
        trial.report(10, {'loss': 1.0})
        trial.report(20, {'loss': 2.0})
    with open_study(tmp_path, tunable) as study:
        trial = ask(study)
        assert study.decide(trial) is None
        trial.report(10, {'loss': 1.0})
        assert study.decide(trial) is None
        trial.report(20, {'loss': 2.0})
        assert study.decide(trial) is not None
        assert len(trial.view.measurements) == 2


def test_no_early_stopping_stops_nothing(study):
    for _ in range(5):
        trial = ask(study)
        trial.report(10, {'loss': float(trial.id)})
        assert study.decide(trial) is None
        trial.complete()


# --- What is refused ---


def test_a_study_has_at_least_one_trial():
    with pytest.raises(ValueError, match='trials must be at least 1'):
        search(budget=Budget(0))


def test_another_experiment_is_refused_with_the_difference(tmp_path):
    open_study(tmp_path, toy()).close()
    changed = toy(
        search=search(budget=Budget(9), seed=1), layer=pg.oneof([Dense(), Dense(16), Dense(17)])
    )
    with pytest.raises(UserError) as error:
        open_study(tmp_path, changed)
    lines = str(error.value).splitlines()
    assert lines[0] == f'{tmp_path} holds a study of another experiment. There, and now:'
    assert '  search.seed: 0 → 1' in lines
    assert '  layer.candidates[2].width: 16 → 17' in lines
    assert not any('num_trials' in line for line in lines)


def test_other_data_are_refused(tmp_path):
    data = {'train_input': 'abc', 'eval_inputs.eval': 'def'}
    open_study(tmp_path, toy(), data).close()
    open_study(tmp_path, toy(), dict(reversed(data.items()))).close()
    for other in ({**data, 'train_input': 'xyz'}, {'eval_inputs.eval': 'def'}):
        with pytest.raises(UserError, match='fingerprint of train_input was abc there'):
            open_study(tmp_path, toy(), other)


@pytest.mark.pax('What is traced: task')
def test_decisions_about_the_search_are_refused(tmp_path):
    with pytest.raises(UserError, match=r'search\.seed: the search itself cannot be searched'):
        open_study(tmp_path, toy(search=search(seed=pg.oneof([1, 2]))))


def test_directories_that_are_no_local_disk_are_refused():
    with pytest.raises(UserError, match='needs a local disk'):
        open_study('gs://bucket/study', toy())


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / 'study.db').write_text('not a database, but long enough to be read as one' * 99)
    with pytest.raises(UserError, match='cannot be opened as a study'):
        open_study(tmp_path, toy())


def test_a_study_that_is_not_there_cannot_be_loaded(tmp_path):
    with pytest.raises(UserError, match='There is no study in'):
        load_study(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- Reading ---


def test_a_loaded_study_is_the_same_and_cannot_be_written(tmp_path):
    directory = tmp_path / 'a b?c%20#d'
    with open_study(directory, toy()) as study:
        run(study)
        with load_study(directory) as loaded:
            assert pg.eq(loaded.value, study.value)
            assert decisions(loaded) == decisions(study)
            assert best(loaded).id == best(study).id
            assert loaded.num_trials == 5
            assert pg.eq(best(loaded).materialize(), best(study).materialize())
            with pytest.raises(UserError, match='opened to be read only'):
                loaded.open_trial(1).set_metadata({'a': 'b'})
        assert (directory / 'study.db').exists()


def test_a_loaded_study_follows_the_one_that_runs(tmp_path):
    with open_study(tmp_path, toy()) as study:
        trial = ask(study)
        with load_study(tmp_path) as loaded:
            assert loaded.trials[0].state == 'ACTIVE'
            finish(trial)
            ask(study)
            assert [each.state for each in loaded.trials] == ['COMPLETED', 'ACTIVE']


@pytest.mark.pax('Conditional space', "Vizier's backend: creates")
def test_the_search_space_in_the_database_is_conditional(tmp_path):
    deep = pg.oneof([pg.Dict(a=pg.oneof([pg.Dict(b=pg.oneof(['x', 'y'])), None])), None])
    with open_study(tmp_path, toy(layer=deep)) as study:
        assert isinstance(study.store, LocalStore)
        space = svz.StudyConfig.from_proto(study.store.study_spec()).search_space
        run(study)
    names = {each.name for top in space.parameters for each in top.traverse()}
    assert 'layer[=0/2].a[=0/2].b' in names
