"""Loops of `pg.sample` that go on later, elsewhere, or in several threads."""

import signal
import subprocess
import sys
import threading

import pyglove as pg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paxtune.search_space.decisions import to_dna
from paxtune.storage.open_study import load_study
from paxtune.study.record import Status
from tests.factories.pyglove_loops import SPACE, evolution, examples, forget, run, sample
from tests.factories.studies import rewrite
from tests.paxtune.search_space.test_spec_value import Custom
from tests.servers.processes import ROOT, environment
from trainer.runtime import directory
from trainer.symbolic.errors import UserError

pytestmark = pytest.mark.usefixtures('alone')


# --- Going on ---


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    """The state of a process: an algorithm, and a loop for each of its workers."""

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


@pytest.mark.pax('A custom algorithm', "PyGlove's algorithms through")
@pytest.mark.slow
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
from tests.paxtune.pyglove_backend.test_backend import evolution, sample

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
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with load_study(tmp_path / 'killed') as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 6 + ['ACTIVE']
    run(evolution(), 9, job_log_dir=tmp_path / 'killed')
    with load_study(tmp_path / 'killed') as study:
        decisions = [to_dna(study.space.spec, trial.by_id).to_numbers() for trial in study.trials]
    assert decisions == run(evolution(), 9)


def test_a_kill_before_the_end_of_a_trial_repeats_its_feedback(tmp_path):
    run(evolution(), 3, job_log_dir=tmp_path)
    forget()
    with load_study(tmp_path, read_only=False) as study:
        rewrite(study, 3, status=Status.ACTIVE, ended=None, final=None)
    algorithm = evolution()
    _, feedback = next(sample(algorithm, job_log_dir=tmp_path))
    assert (feedback.id, algorithm.num_feedbacks) == (3, 2)
    feedback.done()
    assert algorithm.num_feedbacks == 3


@pytest.mark.slow
def test_an_algorithm_without_a_seed_recovers(tmp_path):
    def unseeded():
        return pg.evolution.regularized_evolution(population_size=4, tournament_size=2)

    dnas = run(unseeded(), 6, job_log_dir=tmp_path)
    forget()
    algorithm = unseeded()
    next(sample(algorithm, 7, job_log_dir=tmp_path))
    assert (algorithm.num_proposals, algorithm.num_feedbacks) == (7, 6)
    assert [dna.to_numbers() for dna in algorithm.population] == dnas[-4:]


@pytest.mark.contract
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


@pytest.mark.slow
def test_an_algorithm_that_cannot_go_on_says_so(tmp_path):
    run(pg.geno.Sweeping(), 2, space=pg.Dict(x=pg.oneof([1, 2, 3])), job_log_dir=tmp_path)
    forget()
    space = pg.Dict(x=pg.oneof([1, 2, 3]))
    with pytest.raises(UserError, match=r'^Evolution cannot go on from the 2 trials .*KeyError'):
        run(evolution(seed=5), 4, space=space, job_log_dir=tmp_path)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
