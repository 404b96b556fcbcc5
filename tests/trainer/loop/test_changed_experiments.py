"""Runs that resume with a changed experiment."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.factories.runs import measured
from tests.factories.tiny import CountingInput, experiment
from trainer import main
from trainer.checkpoints import experiment_record
from trainer.checkpoints.experiment_record import recorded
from trainer.checkpoints.handover import take_over
from trainer.inputs import MultiInput
from trainer.layers import GatedFeedForward
from trainer.loop.train_loop import run
from trainer.symbolic.errors import UserError
from trainer.symbolic.serialization import to_json_text

EXP = 'tests.factories.tiny.experiment'
FEED_FORWARD = 'task__model__stack__layers[0]__feed_forward'


def train(directory: Path, *changes: str, flags: tuple[str, ...] = ()) -> int:
    every = ('train.num_train_steps=2', *changes)
    return main.main([f'--exp={EXP}', f'--job_log_dir={directory}', *flags, '--set', *every])


def records(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob('experiment*.json'))


def test_changes_can_be_allowed_only_to_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='--allow_changes is for training'):
        train(tmp_path, flags=('--mode=eval', '--allow_changes'))


@pytest.mark.pax('--enforce_restore_shape_check')
def test_other_data_and_another_task_are_refused_with_their_paths(tmp_path: Path) -> None:
    assert train(tmp_path) == 0
    before = (tmp_path / 'experiment.json').read_text()
    with pytest.raises(UserError) as caught:
        train(tmp_path, 'train_input.batch_size=4', 'task.learner.learning_rate=0.5')
    assert str(caught.value).splitlines()[:3] == [
        f'--job_log_dir: {tmp_path} holds another experiment. There, and now:',
        '  task.learner.learning_rate: 0.01 → 0.5',
        '  train_input.batch_size: 8 → 4',
    ]
    assert '--allow_changes' in str(caught.value)
    assert (tmp_path / 'experiment.json').read_text() == before
    assert records(tmp_path) == ['experiment.json']


def test_checkpoints_of_an_unknown_experiment_are_not_resumed(tmp_path: Path) -> None:
    assert train(tmp_path) == 0
    (tmp_path / 'experiment.json').unlink()
    with pytest.raises(UserError, match=r'experiment\.json: missing, beside checkpoints'):
        train(tmp_path)
    assert records(tmp_path) == []
    assert train(tmp_path, flags=('--allow_changes',)) == 0
    assert records(tmp_path) == ['experiment.json']


def test_allowed_changes_are_printed_and_the_earlier_experiment_is_kept(
    tmp_path: Path, capsys: Any
) -> None:
    assert train(tmp_path) == 0
    before = (tmp_path / 'experiment.json').read_text()
    capsys.readouterr()
    rate = 'task.learner.learning_rate=0.5'
    assert train(tmp_path, 'train.num_train_steps=4', rate, flags=('--allow_changes',)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        'The experiment has changed. Before, and now:',
        '  task.learner.learning_rate: 0.01 → 0.5',
        '  train.num_train_steps: 2 → 4',
    ]
    assert 'resumed from step 2' in lines
    assert records(tmp_path) == ['experiment-1-until-step-2.json', 'experiment.json']
    assert (tmp_path / 'experiment-1-until-step-2.json').read_text() == before
    now = json.loads((tmp_path / 'experiment.json').read_text())
    assert now['task']['learner']['learning_rate'] == 0.5
    # From now on the changed experiment is that of the run.
    assert train(tmp_path, 'train.num_train_steps=4', rate) == 0
    assert 'changed' not in capsys.readouterr().out
    assert records(tmp_path) == ['experiment-1-until-step-2.json', 'experiment.json']


def test_an_evaluation_job_warns_of_another_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert train(tmp_path) == 0
    flags = ('--mode=eval_once',)
    assert train(tmp_path, 'eval_inputs.eval.batch_size=4', flags=flags) == 0
    assert 'another task' not in caplog.text
    assert train(tmp_path, 'task.learner.learning_rate=0.5', flags=flags) == 0
    assert 'another task:  task.learner.learning_rate: 0.01 → 0.5' in caplog.text


def test_another_length_needs_no_permission(tmp_path: Path, capsys: Any) -> None:
    assert train(tmp_path) == 0
    assert train(tmp_path, 'train.num_train_steps=4', 'train.evaluation.every=4') == 0
    out = capsys.readouterr().out
    assert '  train.evaluation.every: 2 → 4\n' in out
    assert '  train.num_train_steps: 2 → 4\n' in out
    assert records(tmp_path) == ['experiment-1-until-step-2.json', 'experiment.json']


def test_a_run_without_a_checkpoint_begins_with_any_experiment(tmp_path: Path) -> None:
    assert train(tmp_path, 'train.checkpoints=null') == 0
    assert train(tmp_path, 'task.learner.learning_rate=0.5') == 0
    assert records(tmp_path) == ['experiment.json']


def test_a_new_attempt_with_another_experiment_is_refused(tmp_path: Path) -> None:
    measured(experiment(num_steps=2), tmp_path / 'first')
    assert take_over([tmp_path / 'first'], tmp_path / 'second') == 2
    changed = experiment(num_steps=2, task__learner__learning_rate=0.5)
    with pytest.raises(UserError, match=r'task\.learner\.learning_rate: 0\.01 → 0\.5'):
        measured(changed, tmp_path / 'second')
    (same,) = measured(experiment(num_steps=2), tmp_path / 'second')
    assert same.resumed_from == 2
    (other,) = measured(changed, tmp_path / 'second', allow_changes=True)
    assert other.resumed_from == 2


@pytest.mark.parametrize(
    ('changed', 'path', 'text', 'is_free'),
    [
        ({'train__random_seed': 1}, 'train.random_seed', '0 → 1', False),
        ({'mesh__data': 2}, 'mesh.data', '1 → 2', True),
        ({'train__checkpoints': None}, 'train.checkpoints', 'Checkpoints(…) → null', True),
        ({'eval_inputs': {}}, 'eval_inputs.eval', 'CountingInput(…) → (nothing)', False),
        (
            {FEED_FORWARD: GatedFeedForward(32)},
            'task.model.stack.layers[0].feed_forward',
            'FeedForward(…) → GatedFeedForward(…)',
            False,
        ),
        (
            {'eval_inputs__other': CountingInput(batch_size=8)},
            'eval_inputs.other',
            '(nothing) → CountingInput(…)',
            False,
        ),
    ],
)
def test_a_change_is_a_path_with_both_values(
    tmp_path: Path, changed: dict[str, Any], path: str, text: str, is_free: bool
) -> None:
    experiment_record.write(tmp_path, recorded(experiment()), 0, [])
    (found,) = experiment_record.changes(tmp_path, recorded(experiment(**changed)))
    assert (str(found), found.is_free) == (f'  {path}: {text}', is_free)


def test_a_record_without_a_field_that_has_a_default_now_is_the_same(tmp_path: Path) -> None:
    made = experiment()
    record = json.loads(to_json_text(made))
    del record['train']['gc_interval_steps'], record['smoke']
    (tmp_path / 'experiment.json').write_text(json.dumps(record))
    assert experiment_record.changes(tmp_path, recorded(made)) == []
    # The record of a class that this process does not know is compared as it is.
    record['train_input']['_type'] = 'elsewhere.Input'
    (tmp_path / 'experiment.json').write_text(json.dumps(record))
    paths = [change.path for change in experiment_record.changes(tmp_path, recorded(made))]
    assert paths == ['train_input', 'train.gc_interval_steps']


@pytest.mark.parametrize('text', ['', '[]', '{"task": '])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / 'experiment.json').write_text(text)
    with pytest.raises(UserError, match=r'experiment\.json is damaged'):
        experiment_record.changes(tmp_path, recorded(experiment()))


def test_batches_of_all_processes_are_compared_where_their_number_changes(tmp_path: Path) -> None:
    whole = experiment()
    experiment_record.write(tmp_path, recorded(whole), 0, [])
    halves = experiment(train_input__batch_size=4, eval_inputs__eval__batch_size=4)
    assert experiment_record.changes(tmp_path, recorded(halves), num_shards=(1, 2)) == []
    found = experiment_record.changes(tmp_path, recorded(whole), num_shards=(1, 2))
    assert [str(change) for change in found] == [
        '  train_input.batch_size of all processes: 8 → 16',
        '  eval_inputs.eval.batch_size of all processes: 8 → 16',
    ]
    assert not any(change.is_free for change in found)


def test_batches_of_inputs_inside_of_an_input_are_those_of_all_processes_too(
    tmp_path: Path,
) -> None:
    def made(size: int) -> Any:
        each = {'batch_size': size, 'is_training': True}
        mixture = MultiInput(**each, inputs={'a': CountingInput(**each)})
        return experiment(train_input=mixture, eval_inputs__eval__batch_size=size)

    experiment_record.write(tmp_path, recorded(made(8)), 0, [])
    assert experiment_record.changes(tmp_path, recorded(made(4)), num_shards=(1, 2)) == []
    assert len(experiment_record.changes(tmp_path, recorded(made(8)), num_shards=(1, 2))) == 3


def test_a_run_of_fewer_steps_than_its_checkpoint_reports_that_one_as_the_last(
    tmp_path: Path,
) -> None:
    list(run(experiment(num_steps=5), tmp_path))
    (report,) = run(experiment(num_steps=3), tmp_path)
    assert (report.step, report.is_last, report.resumed_from) == (5, True, 5)
