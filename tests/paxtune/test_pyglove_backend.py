"""`pg.sample` on a paxtune study: PyGlove's own cases, and what PyGlove's backend does not do."""

import contextlib
import gc
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import threading
import unittest
import weakref
from pathlib import Path

import pyglove as pg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paxtune import pyglove_backend, stops
from paxtune.api import load_study
from paxtune.pyglove_backend import PaxtuneBackend
from paxtune.pyglove_loop import PyGloveAlgorithm
from paxtune.study import Study
from tests.paxtune.studies import best
from tests.paxtune.test_spec_value import Custom
from tests.processes import ROOT, environment
from trainer import directory
from trainer.errors import UserError

SPACE = pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.oneof(['a', 'b', pg.manyof(2, [1, 2, 3])]))


def sample(algorithm, num_examples=None, space=SPACE, **kwargs):
    return pg.sample(space, algorithm, num_examples, backend='paxtune', **kwargs)


def evolution(seed=1):
    """Regularized evolution all of whose random numbers are its own."""
    mutator = pg.evolution.mutators.Uniform(seed=seed)
    return pg.evolution.regularized_evolution(mutator, 4, 2, seed=seed)


def run(algorithm, num_examples, **kwargs):
    """Runs a loop, the reward of which is x. Returns the DNAs."""
    dnas = []
    for example, feedback in sample(algorithm, num_examples, **kwargs):
        dnas.append(feedback.dna.to_numbers())
        feedback(example.x)
    return dnas


def forget():
    """Lets go of all loops, as the end of a process would."""
    pyglove_backend._by_name.clear()
    gc.collect()
    assert not pyglove_backend._by_directory


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Each test has its own loops."""
    monkeypatch.setattr(pyglove_backend, '_by_name', {})
    monkeypatch.setattr(pyglove_backend, '_by_directory', weakref.WeakValueDictionary())


# --- PyGlove's own cases ---


def load_sample_test():
    path = Path(pg.__file__).parent / 'core' / 'tuning' / 'sample_test.py'
    spec = importlib.util.spec_from_file_location('pyglove_sample_test', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAMPLE_TEST = load_sample_test()
CASES = unittest.TestLoader().getTestCaseNames(SAMPLE_TEST.SamplingTest)


@pytest.fixture(params=['in memory', 'on disk'])
def by_default(request, monkeypatch, tmp_path):
    """Makes `pg.sample` use paxtune's backend, and no other."""
    before = pg.tuning.default_backend()
    pg.tuning.set_default_backend('paxtune')
    in_memory = pg.tuning.backend.get_backend_cls('in-memory')
    monkeypatch.setattr(in_memory, '__init__', lambda *_, **__: pytest.fail('another backend'))
    if request.param == 'on disk':
        init, places = PaxtuneBackend.__init__, iter(range(99))

        def init_on_disk(self, name, **kwargs):
            init(self, name, **kwargs, job_log_dir=tmp_path / (name or str(next(places))))

        monkeypatch.setattr(PaxtuneBackend, '__init__', init_on_disk)
    yield
    pg.tuning.set_default_backend(before)


def test_there_are_cases():
    assert len(CASES) >= 12


@pytest.mark.parametrize('case', CASES)
def test_case_of_pyglove(by_default, case):
    SAMPLE_TEST.SamplingTest(case).debug()


# --- The study behind it ---


def test_it_is_a_study_that_paxtune_reads(tmp_path):
    dnas = run(pg.geno.Random(seed=1), 6, job_log_dir=tmp_path)
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 6
        assert [trial.dna.to_numbers() for trial in study.trials] == dnas
        first = best(study)
        assert first.reward == max(trial.decisions['x'] for trial in study.trials)
        assert first.materialize().x == first.reward
        assert first.metrics == {'reward': first.reward}
        assert list(study.to_pandas()['state']) == ['COMPLETED'] * 6
        assert study.done_reason == 'it has all of its 6 trials'
    with Study.load(tmp_path, read_only=False) as study:
        study.search.rebind(num_trials=7)
        with pytest.raises(UserError, match='a PyGlove algorithm proposes the trials'):
            study.suggest()


class Pairs(pg.geno.Sweeping):
    multi_objective = True


def test_several_objectives_have_a_front(tmp_path):
    space = pg.Dict(x=pg.oneof([(0.0, 1.0), (1.0, 0.0), (0.0, 0.5)]))
    two = {'metrics_to_optimize': ['up', 'high']}
    for example, feedback in sample(Pairs(), space=space, name='two', job_log_dir=tmp_path, **two):
        feedback(example.x)
    result = pg.poll_result('two', backend='paxtune')
    assert [trial.final_measurement.metrics for trial in result.trials][1] == {'up': 1, 'high': 0}
    assert result.best_trial is None
    assert 'best' not in str(result)
    with load_study(tmp_path) as study:
        assert [trial.id for trial in study.pareto_front] == [1, 2]


def test_fields_called_as_those_of_an_experiment_can_be_searched():
    space = pg.Dict(search=pg.oneof([1, 2]), shared=pg.Dict(x=pg.oneof([3, 4])))
    assert len(list(examples(sample(pg.geno.Sweeping(), space=space)))) == 4


def examples(loop, reward=0.0):
    for example, feedback in loop:
        feedback(reward)
        yield example


def test_polling_a_directory(tmp_path):
    run(pg.geno.Random(seed=1), 3, job_log_dir=tmp_path)
    result = pg.poll_result('any', backend='paxtune', job_log_dir=tmp_path)
    assert len(result.trials) == 3
    assert result.last_updated is not None
    assert result.is_active
    with pytest.raises(UserError, match='There is no study in'):
        pg.poll_result('any', backend='paxtune', job_log_dir=tmp_path / 'none')


def test_a_loop_without_trials_has_no_result_yet():
    loop = sample(pg.geno.Random(), name='new')
    next(loop)
    result = pg.poll_result('new', backend='paxtune')
    assert result.best_trial is None
    assert result.last_updated is None
    assert "'PENDING': '1/1'" in str(result)


# --- Going on ---


def test_the_same_call_goes_on(tmp_path):
    whole = run(pg.geno.Random(seed=3), 7, job_log_dir=tmp_path / 'whole')
    parts = []
    for total in (3, 3, 7):
        parts += run(pg.geno.Random(seed=3), total, job_log_dir=tmp_path / 'parts')
        forget()
    assert parts == whole
    parts += run(pg.geno.Random(seed=3), 9, name='n')
    assert run(pg.geno.Random(seed=3), 9, name='n') == []
    assert len(run(pg.geno.Random(seed=3), 11, name='n')) == 2


def test_a_sweep_is_the_same_in_parts(tmp_path):
    space = pg.Dict(x=pg.oneof(range(3)), y=pg.oneof([1, pg.oneof([2, 3])]))
    whole = [example.clone() for example in examples(sample(pg.geno.Sweeping(), space=space))]
    assert len(whole) == 9
    parts = []
    for total in (4, None):
        loop = sample(pg.geno.Sweeping(), total, space=space, job_log_dir=tmp_path)
        parts += [example.clone() for example in examples(loop)]
        forget()
    assert parts == whole


def test_a_trial_that_was_left_behind_comes_first(tmp_path):
    loop = sample(pg.geno.Random(seed=3), 4, job_log_dir=tmp_path)
    _, feedback = next(loop)
    first = feedback.dna.to_numbers()
    feedback.add_measurement(0.5, step=1, checkpoint_path='/somewhere', elapse_secs=2.5)
    del loop, feedback
    forget()
    loop = sample(pg.geno.Random(seed=3), 4, job_log_dir=tmp_path)
    _, feedback = next(loop)
    assert (feedback.id, feedback.status, feedback.dna.to_numbers()) == (1, 'PENDING', first)
    (before,) = feedback.get_trial().measurements
    assert (before.step, before.reward, before.elapse_secs) == (1, 0.5, 2.5)
    assert before.checkpoint_path == '/somewhere'
    feedback.done()
    assert feedback.status == 'COMPLETED'
    assert next(loop)[1].id == 2


def test_groups_get_their_own_trials_back(tmp_path):
    kept = [
        next(sample(pg.geno.Random(seed=1), group=group, job_log_dir=tmp_path))[1]
        for group in ('a', 2, None)
    ]
    assert [feedback.id for feedback in kept] == [1, 2, 3]
    kept.clear()
    forget()
    for group, id_ in ((2, 2), ('b', 3), ('a', 1), ('c', 4)):
        kept.append(next(sample(pg.geno.Random(seed=1), group=group, job_log_dir=tmp_path))[1])
        assert kept[-1].id == id_


class Process:
    """What a process works with: an algorithm, and a loop for each of its workers."""

    def __init__(self, place):
        self.algorithm, self.place = evolution(), place
        self.loops, self.feedbacks = {}, {}

    def feedback(self, worker):
        if worker not in self.loops:
            loop = sample(self.algorithm, group=worker, job_log_dir=self.place)
            self.loops[worker] = loop
        if worker not in self.feedbacks:
            _, self.feedbacks[worker] = next(self.loops[worker])
        return self.feedbacks[worker]

    def end(self, worker):
        return self.feedbacks.pop(worker)


ACTIONS = ['begin', 'done', 'done', 'done', 'skip', 'restart']


@settings(max_examples=3)
@given(
    st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.sampled_from(['one', 'other'])),
        min_size=15,
        max_size=20,
    )
)
def test_evolution_goes_on_as_if_nothing_had_happened(tmp_path_factory, actions):
    def play(restarts):
        process, done = Process(tmp_path_factory.mktemp('study')), []
        for action, worker in actions:
            if action == 'restart':
                if restarts:
                    place = process.place
                    del process
                    forget()
                    process = Process(place)
                continue
            feedback = process.feedback(worker)
            if action == 'done':
                feedback(feedback.dna.to_numbers()[0])
            elif action == 'skip':
                feedback.skip()
            if action != 'begin':
                process.end(worker)
                done.append((feedback.id, feedback.dna.to_numbers()))
            del feedback
        return done

    assert play(restarts=True) == play(restarts=False)


SCRIPT = """
import os, signal, sys
import pyglove as pg
import paxtune.pyglove_backend
from tests.paxtune.test_pyglove_backend import evolution, sample

for example, feedback in sample(evolution(), 9, job_log_dir=sys.argv[1]):
    feedback.add_measurement(example.x, step=1)
    if feedback.id == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    feedback.done()
"""


@pytest.mark.slow
def test_a_killed_process_loses_nothing(tmp_path):
    killed = subprocess.run(
        [sys.executable, '-c', SCRIPT, str(tmp_path / 'killed')],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with Study.load(tmp_path / 'killed') as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 6 + ['ACTIVE']
    run(evolution(), 9, job_log_dir=tmp_path / 'killed')
    with Study.load(tmp_path / 'killed') as study:
        decisions = [trial.dna.to_numbers() for trial in study.trials]
    assert decisions == run(evolution(), 9)


def test_an_algorithm_without_a_seed_recovers(tmp_path):
    def unseeded():
        return pg.evolution.regularized_evolution(population_size=4, tournament_size=2)

    dnas = run(unseeded(), 6, job_log_dir=tmp_path)
    forget()
    algorithm = unseeded()
    next(sample(algorithm, 7, job_log_dir=tmp_path))
    assert (algorithm.num_proposals, algorithm.num_feedbacks) == (7, 6)
    assert [dna.to_numbers() for dna in algorithm.population] == dnas[-4:]


def test_an_algorithm_goes_on_by_itself(tmp_path):
    algorithm = evolution()
    parts = run(algorithm, 6, job_log_dir=tmp_path)
    forget()
    parts += run(algorithm, 10, job_log_dir=tmp_path)
    assert parts == run(evolution(), 10)
    # Here it has seen more than there is: it is set up anew.
    assert run(evolution(2), 2, name='n') == run(evolution(2), 2)
    run(algorithm, 4, name='n')
    assert algorithm.num_proposals == 4


def test_an_algorithm_that_cannot_go_on_says_so(tmp_path):
    run(pg.geno.Sweeping(), 2, space=pg.Dict(x=pg.oneof([1, 2, 3])), job_log_dir=tmp_path)
    forget()
    space = pg.Dict(x=pg.oneof([1, 2, 3]))
    with pytest.raises(UserError, match=r'^Evolution cannot go on from the 2 trials .*KeyError'):
        run(evolution(seed=5), 4, space=space, job_log_dir=tmp_path)


def test_a_policy_goes_on(tmp_path):
    def trials(policy, ids):
        for id_, value in ids.items():
            loop = sample(pg.geno.Random(), None, SPACE, **policy, job_log_dir=tmp_path)
            _, feedback = next(loop)
            assert feedback.id == id_
            assert not feedback.should_stop_early()
            feedback.add_measurement(value, step=1)
            yield feedback.should_stop_early()
            feedback.done()

    def policy():
        by_rank = pg.early_stopping.early_stop_by_rank([(1, 0.5, 2)])()
        return {'early_stopping_policy': by_rank}

    assert list(trials(policy(), {1: 0.1, 2: 0.9})) == [False, False]
    forget()
    assert list(trials(policy(), {3: 0.05, 4: 0.95})) == [True, False]
    assert list(trials({}, {5: 0.0})) == [False]


# --- One after another, and at once ---


def test_threads_share_a_study(tmp_path):
    algorithm, seen = evolution(), []

    def work():
        for example, feedback in sample(algorithm, 12, job_log_dir=tmp_path):
            seen.append(feedback.id)
            feedback(example.x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 13))
    assert (algorithm.num_proposals, algorithm.num_feedbacks) == (12, 12)
    # It can be repeated, in whatever order they came.
    forget()
    again = evolution()
    next(sample(again, 13, job_log_dir=tmp_path))
    assert [dna.to_numbers() for dna in again.population] == [
        dna.to_numbers() for dna in algorithm.population
    ]


def test_a_group_works_on_one_trial():
    algorithm = pg.geno.Random(seed=1)
    loops = [sample(algorithm, name='n', group='all') for _ in range(2)]
    (_, one), (_, other) = map(next, loops)
    assert (one.id, one.dna) == (other.id, other.dna)
    one.set_metadata('half', 1)
    assert other.get_metadata('half') == 1
    one(0.5)
    other.done()
    other.skip()
    assert algorithm.num_feedbacks == 1
    with pytest.raises(pg.tuning.RaceConditionError, match='only be added to PENDING trials'):
        other.add_measurement(0.1)
    assert next(loops[1])[1].id == 2


def test_workers_of_one_loop_share_its_algorithm():
    first, second = evolution(), evolution()
    loop, other = (
        sample(algorithm, 8, name='n', group=algorithm is first) for algorithm in (first, second)
    )
    dnas = []
    for each in [loop, loop, other, loop, other, loop, loop, other]:
        example, feedback = next(each)
        dnas.append(feedback.dna.to_numbers())
        feedback(example.x)
    assert dnas == run(evolution(), 8)


def test_two_processes_do_not_share_a_directory(tmp_path):
    with (
        directory.locked(tmp_path),
        pytest.raises(UserError, match=r'is working there: wait for it'),
    ):
        run(pg.geno.Random(), 1, job_log_dir=tmp_path)
    run(pg.geno.Random(), 1, job_log_dir=tmp_path)
    forget()
    with directory.locked(tmp_path):
        pass


def test_another_space_or_metric_is_refused(tmp_path):
    other = pg.Dict(x=pg.floatv(0.0, 2.0))
    run(pg.geno.Random(), 1, job_log_dir=tmp_path, name='n')
    for place in ({'name': 'n', 'job_log_dir': tmp_path}, {'job_log_dir': tmp_path}):
        with pytest.raises(ValueError, match='the search space differs'):
            run(pg.geno.Random(), 2, space=other, **place)
        with pytest.raises(ValueError, match=r"is \['loss'\], and was \['reward'\]"):
            run(pg.geno.Random(), 2, metrics_to_optimize=['loss'], **place)
    forget()
    with pytest.raises(UserError, match='holds a study of another experiment'):
        run(pg.geno.Random(), 2, space=other, job_log_dir=tmp_path)
    with pytest.raises(UserError, match='holds a study of another experiment'):
        run(pg.geno.Random(), 2, metrics_to_optimize=['loss'], job_log_dir=tmp_path)


def test_a_name_is_that_of_one_loop(tmp_path):
    run(pg.geno.Random(), 1, job_log_dir=tmp_path / 'here', name='n')
    assert len(run(pg.geno.Random(), 2, name='n')) == 1
    with pytest.raises(ValueError, match=r"'n' is the name of a sampling loop in .*here already"):
        run(pg.geno.Random(), 2, job_log_dir=tmp_path / 'there', name='n')


def test_custom_decisions_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match='no CustomDecisionPoint'):
        run(pg.geno.Random(), 1, space=pg.Dict(x=Custom()), job_log_dir=tmp_path / 'new')
    assert not (tmp_path / 'new').exists()


# --- Rewards ---


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('metric', ['reward', 'accuracy'])
def test_a_reward_that_is_not_finite_is_never_the_best(bad, metric):
    algorithm, rewards = pg.geno.Random(), [bad, 0.5, bad]
    for _, feedback in sample(algorithm, 3, name='n', metrics_to_optimize=[metric]):
        value = rewards[feedback.id - 1]
        if metric == 'reward':
            feedback(value, metrics={'other': bad})
        else:
            feedback(metrics={metric: value, 'other': 1.0})
    result = pg.poll_result('n', backend='paxtune')
    assert result.best_trial.id == 2
    assert result.best_trial.final_measurement.reward == 0.5
    assert [trial.infeasible for trial in result.trials] == [True, False, True]
    assert math.isnan(result.trials[0].measurements[0].reward)
    assert algorithm.num_feedbacks == 1


def test_the_last_measurement_counts():
    _, feedback = next(sample(pg.geno.Random(), name='n'))
    for reward, step in ((0.1, 5), (math.nan, 6), (0.3, 6), (0.2, 2)):
        feedback.add_measurement(reward, metrics={'loss': 1 - reward}, step=step)
    feedback.done()
    (trial,) = pg.poll_result('n', backend='paxtune').trials
    assert [each.step for each in trial.measurements] == [5, 6, 6, 2]
    assert (trial.final_measurement.reward, trial.final_measurement.step) == (0.2, 2)
    assert trial.final_measurement.metrics == {'loss': 0.8}
    assert not trial.infeasible


def test_metrics_with_a_dollar_are_refused():
    _, feedback = next(sample(pg.geno.Random()))
    with pytest.raises(ValueError, match='no metric can be called'):
        feedback.add_measurement(0.1, metrics={'$reward': 1.0})


def test_a_skipped_trial_has_a_reason(tmp_path):
    _, feedback = next(loop := sample(pg.geno.Random(), job_log_dir=tmp_path))
    with feedback.skip_on_exceptions([ValueError]):
        float('large')
    next(loop)[1].skip()
    with load_study(tmp_path) as study:
        thrown = "ValueError: could not convert string to float: 'large'"
        assert [trial.reason for trial in study.trials] == [thrown, 'skipped']


# --- What is kept with trials ---


def test_metadata_and_links_are_kept(tmp_path):
    _, feedback = next(sample(pg.geno.Random(), job_log_dir=tmp_path, name='n'))
    values = {'n': 1, 'tree': {'a': [1, None, 'x', True]}, 'ours': PyGloveAlgorithm()}
    for key, value in values.items():
        feedback.set_metadata(key, value)
        feedback.set_metadata(key, value, per_trial=False)
    feedback.set_metadata('pair', (1, (2, 3)))
    feedback.add_link('log', 'http://log')
    feedback(0.5, metadata={'late': [1]}, related_links={'plot': 'http://plot'})
    assert feedback.get_metadata('none') is None
    del feedback
    forget()
    result = pg.poll_result('n', backend='paxtune', job_log_dir=tmp_path)
    assert result.metadata == values
    (trial,) = result.trials
    assert trial.metadata == values | {'late': [1], 'pair': [1, [2, 3]]}
    assert trial.related_links == {'log': 'http://log', 'plot': 'http://plot'}
    assert 0 < trial.created_time <= trial.completed_time


class Foreign(pg.Object):
    x: int


@pytest.mark.parametrize('value', [Foreign(1), {'a': [Foreign]}, object()])
def test_metadata_that_could_not_be_read_back_are_refused(value):
    _, feedback = next(sample(pg.geno.Random()))
    with pytest.raises(UserError, match=r"^metadata 'k': a paxtune study keeps plain data"):
        feedback.set_metadata('k', value)
    assert feedback.get_metadata('k') is None


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


def test_nothing_that_is_read_is_executed(tmp_path):
    _, feedback = next(sample(pg.geno.Random(), job_log_dir=tmp_path))
    ran = tmp_path / 'ran'
    harm = pg.to_json(Harm(ran))
    with Study.open(
        tmp_path, feedback._loop.study.value, search=feedback._loop.study.search
    ) as study:
        study.trial(1).note(
            **{
                'user:harm': json.dumps({'value': harm}),
                'dna_metadata': json.dumps({'value': {'x': harm}}),
                'user:text': 'from elsewhere',
            }
        )
    assert feedback.get_metadata('text') == 'from elsewhere'
    for read in (lambda: feedback.get_metadata('harm'), feedback.get_trial):
        with pytest.raises(UserError, match='which is no known component'):
            read()
    assert not ran.exists()
    with contextlib.suppress(TypeError):
        pg.from_json(harm)
    assert ran.exists()


def test_the_metadata_of_a_dna_survive(tmp_path):
    @pg.geno.dna_generator
    def tagged(dna_spec):
        for i in range(3):
            yield pg.DNA(i, spec=dna_spec).set_metadata('tag', (i, 'x'))

    space = pg.Dict(x=pg.oneof([1, 2, 3]))
    _, feedback = next(sample(tagged(), space=space, job_log_dir=tmp_path))
    del feedback
    forget()
    result = pg.poll_result('', backend='paxtune', job_log_dir=tmp_path)
    assert result.trials[0].dna.metadata.tag == [0, 'x']


# --- Operations of paxtune on the study ---


def test_the_loop_is_ended_for_good(tmp_path):
    for _, feedback in sample(pg.geno.Random(), job_log_dir=tmp_path):
        feedback(0.5)
        if feedback.id == 3:
            feedback.end_loop()
    del feedback
    forget()
    assert run(pg.geno.Random(), 9, job_log_dir=tmp_path) == []
    assert not pg.poll_result('', backend='paxtune', job_log_dir=tmp_path).is_active


def test_a_study_can_be_stopped_from_outside(tmp_path):
    loop = sample(pg.geno.Random(), job_log_dir=tmp_path)
    _, feedback = next(loop)
    feedback.add_measurement(0.5)
    assert not feedback.should_stop_early()
    with Study.load(tmp_path, read_only=False) as study:
        stops.stop(study.store, 1)
        assert feedback.should_stop_early()
        stops.pause(study.store)
        feedback.done()
        assert list(loop) == []
    del loop, feedback
    forget()
    assert len(run(pg.geno.Random(), 2, job_log_dir=tmp_path)) == 1


def test_added_trials_run_and_the_algorithm_is_not_told(tmp_path):
    _, feedback = next(sample(evolution(), job_log_dir=tmp_path))
    feedback(0.5, checkpoint_path='/first', step=3)
    del feedback
    forget()
    with Study.load(tmp_path, read_only=False) as study:
        study.add({'x': 0.25, 'y': 'a'}, warm_start=1)
    algorithm = evolution()
    loop = sample(algorithm, 3, job_log_dir=tmp_path)
    example, feedback = next(loop)
    assert (feedback.id, example) == (2, pg.Dict(x=0.25, y='a'))
    assert feedback.checkpoint_to_warm_start_from == '/first'
    feedback(0.9)
    assert (algorithm.num_proposals, algorithm.num_feedbacks) == (1, 1)
    _, feedback = next(loop)
    assert feedback.checkpoint_to_warm_start_from is None
    assert feedback.dna.to_numbers() == run(evolution(), 2)[1]
