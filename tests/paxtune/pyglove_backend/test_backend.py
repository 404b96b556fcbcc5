"""The study behind `pg.sample`, and what PyGlove's own backend does not do."""

import contextlib
import functools
import json
import math
import os

import pyglove as pg
import pytest

from paxtune.pyglove_backend.loop import PyGloveAlgorithm
from paxtune.reports import study_edits
from paxtune.search_space.decisions import to_dna
from paxtune.service.study_location import DirectoryLocation
from paxtune.storage.open_study import load_study
from paxtune.study.record import Status
from tests.factories.pyglove_loops import evolution, examples, forget, run, sample
from tests.factories.studies import best, rewrite
from trainer.symbolic.errors import UserError

pytestmark = pytest.mark.usefixtures('alone')


# --- The study behind it ---


def test_it_is_a_study_that_paxtune_reads(tmp_path):
    dnas = run(pg.geno.Random(seed=1), 6, job_log_dir=tmp_path)
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 6
        assert [
            to_dna(study.space.spec, trial.by_id).to_numbers() for trial in study.trials
        ] == dnas
        first = best(study)
        assert first.reward == max(trial.decisions['x'] for trial in study.trials)
        assert first.materialize().x == first.reward
        assert first.metrics == {'reward': first.reward}
        assert list(study.to_pandas()['state']) == ['completed'] * 6
        assert study.done_reason == 'it has all of its 6 trials'
    with load_study(tmp_path, read_only=False) as study:
        study.search.rebind({'budget.trials': 7})
        with pytest.raises(UserError, match='a PyGlove algorithm proposes the trials'):
            study.ask()


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


@pytest.mark.slow
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
    run(pg.geno.Random(), 1, job_log_dir=tmp_path)
    ran = tmp_path / 'ran'
    harm = pg.to_json(Harm(ran))

    def feedback_after(**fields):
        forget()
        with load_study(tmp_path, read_only=False) as study:
            rewrite(study, 1, status=Status.ACTIVE, ended=None, final=None, **fields)
        return next(sample(pg.geno.Random(), job_log_dir=tmp_path))[1]

    feedback = feedback_after(
        metadata={'harm': json.dumps({'value': harm}), 'text': 'from elsewhere'}
    )
    assert feedback.get_metadata('text') == 'from elsewhere'
    for read in (functools.partial(feedback.get_metadata, 'harm'), feedback.get_trial):
        with pytest.raises(UserError, match='which is not a known component'):
            read()
    del feedback, read
    with pytest.raises(UserError, match='which is not a known component'):
        feedback_after(memo={'dna_metadata': json.dumps({'value': {'x': harm}})})
    assert not ran.exists()
    with contextlib.suppress(TypeError):
        pg.from_json(harm)
    assert ran.exists()


def test_metadata_of_an_ended_trial_change():
    algorithm = pg.geno.Random()
    _, feedback = next(loop := sample(algorithm))
    feedback(0.5)
    next(loop)
    feedback.set_metadata('late', 1)
    assert feedback.get_metadata('late') == 1


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_loop_is_ended_for_good(tmp_path):
    for _, feedback in sample(pg.geno.Random(), job_log_dir=tmp_path):
        feedback(0.5)
        if feedback.id == 3:
            feedback.end_loop()
    del feedback
    forget()
    assert run(pg.geno.Random(), 9, job_log_dir=tmp_path) == []
    assert not pg.poll_result('', backend='paxtune', job_log_dir=tmp_path).is_active


@pytest.mark.slow
def test_a_study_can_be_stopped_from_outside(tmp_path):
    loop = sample(pg.geno.Random(), job_log_dir=tmp_path)
    _, feedback = next(loop)
    feedback.add_measurement(0.5)
    assert not feedback.should_stop_early()
    where = DirectoryLocation(str(tmp_path))
    study_edits.stop(where, [1])
    assert feedback.should_stop_early()
    study_edits.stop(where, [])
    feedback.done()
    assert list(loop) == []
    del loop, feedback
    forget()
    assert len(run(pg.geno.Random(), 2, job_log_dir=tmp_path)) == 1


def test_added_trials_run_without_feedback_to_the_algorithm(tmp_path):
    _, feedback = next(sample(evolution(), job_log_dir=tmp_path))
    feedback(0.5, checkpoint_path='/first', step=3)
    del feedback
    forget()
    with load_study(tmp_path, read_only=False) as study:
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
