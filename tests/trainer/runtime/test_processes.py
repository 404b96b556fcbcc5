"""Training over several processes: real ones, with simulated devices."""

import argparse
import json
import re
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from tests.servers.processes import Ended, all_passed, job
from trainer.checkpoints.reader import CheckpointReader
from trainer.runtime import processes
from trainer.runtime.metric_writer import read_metrics
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.runtime.throughput import THROUGHPUT_METRICS
from trainer.symbolic.errors import NonFiniteLossError, OtherProcessError, UserError

# --- One process ---

_JOBS = 'tests.factories.process_jobs'


def test_one_process_agrees_with_itself() -> None:
    assert processes.count() == 1
    assert processes.is_first()
    assert [processes.agree(), processes.agree(True)] == [False, True]
    assert processes.gather({'a': 1}) == [{'a': 1}]
    assert processes.broadcast(['x']) == ['x']
    with pytest.raises(KeyError), processes.together():
        raise KeyError('mine')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (('localhost:1', None, None), 'go together: give all'),
        ((None, 2, 0), 'go together: give all'),
        (('auto', 2, None), 'go together: give all'),
        (('auto', None, None), 'neither a TPU pod, SLURM .srun., Open MPI .mpirun. nor'),
        (('localhost', 2, 0), '--coordinator: expected host:port'),
        (('localhost:x', 2, 0), '--coordinator: expected host:port'),
        (('localhost:1', 2, 2), '--process_id: expected 0 to 1'),
        (('localhost:1', 2, -1), '--process_id: expected 0 to 1'),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(flags: Any, message: str) -> None:
    names = ('coordinator', 'num_processes', 'process_id')
    with pytest.raises(UserError, match=message):
        processes.start(argparse.Namespace(**dict(zip(names, flags, strict=True))))


def test_a_job_of_one_process_needs_no_others() -> None:
    processes.start(argparse.Namespace(coordinator='localhost:1', num_processes=1, process_id=0))
    assert processes.count() == 1


@pytest.mark.parametrize(
    ('error', 'wanted'),
    [
        (StopTrial('enough', reward=0.5), StopTrial('enough', reward=0.5)),
        (StopTrial('all', metrics={'a': 1.0}), StopTrial('all', metrics={'a': 1.0})),
        (SkipTrial('odd'), SkipTrial('odd')),
        (UserError('no data'), UserError('process 1: no data')),
        (
            NonFiniteLossError('it is nan\nand more'),
            OtherProcessError('process 1: NonFiniteLossError: it is nan'),
        ),
        (KeyError(), OtherProcessError('process 1: KeyError')),
    ],
)
def test_an_error_of_another_process_is_named(error: Exception, wanted: Exception) -> None:
    sent = json.loads(json.dumps(processes.error_to_json(error)))
    received = processes.error_from_json(1, sent)
    assert type(received) is type(wanted)
    assert vars(received) == vars(wanted)
    assert str(received) == str(wanted)


# --- Several ---


def train(name: str, directory: Path, *flags: str, **how: Any) -> list[Ended]:
    flags = (
        f'--exp=tests.factories.multi_process.{name}',
        f'--job_log_dir={directory}',
        *flags,
    )
    return job('trainer.main', *flags, **how)


def metrics(directory: Path) -> list[dict[str, float]]:
    """Reads the measurements by step, without values that differ between runs."""
    left_out = ('time', 'eval_steps_per_second', *THROUGHPUT_METRICS)
    records = read_metrics(directory / 'metrics.jsonl')
    return [{k: v for k, v in record.items() if k not in left_out} for record in records]


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp('undisturbed')
    first, other = train('Rolling', directory)
    all_passed([first, other])
    assert re.findall(r'^step (\d+):', first.out, re.MULTILINE) == ['4', '8', '12']
    assert other.out == ''
    return directory


@pytest.mark.pax('--multiprocess_gpu')
@pytest.mark.slow
def test_processes_talk_and_fail_together() -> None:
    ended = job(_JOBS, 'talk')
    assert all_passed(ended) == 'process 0 is done'
    assert ended[1].out == 'process 1 is done'


@pytest.mark.slow
def test_two_processes_measure_a_step_and_agree_on_its_time() -> None:
    ended = job(_JOBS, 'step_time')
    all_passed(ended)
    first, other = (each.out.strip() for each in ended)
    assert first == other
    assert 0 < float(first) < 60


@pytest.mark.pax('Several hosts inside', '--multiprocess_gpu')
@pytest.mark.slow
@pytest.mark.parametrize(
    ('mesh', 'devices', 'at_once'),
    [
        (['fsdp=4'], 2, 2),
        (['tensor=2'], 1, 1),
        (['data=1', 'fsdp=2', 'sequence=2', 'dcn_data=2'], 4, 1),  # Each process is a slice.
    ],
    ids=['devices of both', 'examples of both', 'two slices'],
)
@pytest.mark.sentinel
def test_two_processes_train_as_one_with_as_many_devices(
    mesh: list[str], devices: int, at_once: int, tmp_path: Path
) -> None:
    # Where both work on the same examples, each reads all of them.
    each = 8 if devices == 1 else 4
    set_mesh = ['--set', *(f'mesh.{size}' for size in mesh), 'train.num_train_steps=5']
    set_mesh += [f'train.steps_per_execution={at_once}', 'train.summary_interval_steps=2']
    sizes = ('train_input.batch_size', 'eval_inputs.eval.batch_size')
    two = train(
        'Text',
        tmp_path / 'two',
        *set_mesh,
        *(f'{path}={each}' for path in sizes),
        devices=devices,
    )
    one = train(
        'Text',
        tmp_path / 'one',
        *set_mesh,
        *(f'{path}=8' for path in sizes),
        processes=1,
        devices=2 * devices,
    )
    all_passed(two)
    all_passed(one)
    got, wanted = metrics(tmp_path / 'two'), metrics(tmp_path / 'one')
    assert [record['step'] for record in got] == [record['step'] for record in wanted]
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_a_signal_to_one_process_makes_all_save_and_leave(
    tmp_path: Path, undisturbed: Path
) -> None:
    ended = train('Rolling', tmp_path, kill={1: 'int:5'})
    assert [each.code for each in ended] == [130, 130], ended
    assert 'Stopped at step 5. To resume:' in ended[0].out
    assert (tmp_path / 'checkpoints' / '5').is_dir()
    assert 'resumed from step 5' in all_passed(train('Rolling', tmp_path))
    assert metrics(tmp_path) == metrics(undisturbed)


@pytest.mark.pax('Hosts stay in step')
@pytest.mark.slow
def test_an_error_in_one_process_ends_all(tmp_path: Path) -> None:
    first, other = train('BrokenEvaluationData', tmp_path)
    assert (first.code, other.code) == (1, 1), (first, other)
    assert 'ValueError: the disk of this host is broken' in other.err
    assert 'error: process 1: ValueError: the disk of this host is broken' in first.err
    assert max(first.seconds, other.seconds) < 10


@pytest.mark.pax('All shards must')
@pytest.mark.slow
def test_an_input_that_ends_early_in_one_process_is_an_error(tmp_path: Path) -> None:
    ended = train('ShorterEvaluationData', tmp_path, '--set', 'train.steps_per_execution=64')
    assert [each.code for each in ended] == [1, 1], ended
    assert all('other processes have fewer batches' in each.err for each in ended)


@pytest.mark.slow
def test_a_signal_of_the_experiment_in_one_process_is_one_of_all(tmp_path: Path) -> None:
    first, other = train('StoppedByData', tmp_path)
    assert 'stopped at step 5: enough' in all_passed([first, other])


@pytest.mark.slow
@pytest.mark.parametrize(('which', 'where'), [(1, 'step:8'), (0, 'save:2')])
def test_a_lost_process_ends_all_and_the_same_commands_go_on(
    which: int, where: str, tmp_path: Path, undisturbed: Path
) -> None:
    ended = train('Rolling', tmp_path, kill={which: where})
    lost, left = ended[which], ended[1 - which]
    assert lost.code == -signal.SIGKILL
    # Ours, where it is noticed in a round; JAX aborts a process that loses the first one.
    assert left.code in (3, -signal.SIGABRT), left
    assert re.search('processes was lost|another task died', left.err), left.err
    assert left.seconds < processes.LOST_AFTER + 15
    out = all_passed(train('Rolling', tmp_path))
    if where == 'step:8':  # The save of step 6 may have been under way.
        assert re.search('resumed from step [36]\n', out)
    assert metrics(tmp_path) == metrics(undisturbed)


@pytest.mark.slow
def test_a_lost_process_costs_at_most_a_local_interval(tmp_path: Path, undisturbed: Path) -> None:
    memory = tmp_path / 'memory'
    flags = (
        '--set',
        'train.checkpoints.every=11',
        f"train.checkpoints.local=LocalCheckpoints('{memory}', every=2)",
    )
    ended = train('Rolling', tmp_path / 'job', *flags, kill={0: 'step:10'})
    assert ended[0].code == -signal.SIGKILL, ended
    out = all_passed(train('Rolling', tmp_path / 'job', *flags))
    assert re.search('resumed from step [68]\n', out)  # The kill may end the write of step 8.
    assert 'Goodput: ' in out
    assert metrics(tmp_path / 'job') == metrics(undisturbed)
    last = [Path(each, 'checkpoints', '12') for each in (tmp_path / 'job', undisturbed)]
    jax.tree.map(np.testing.assert_array_equal, *map(arrays, last))
    assert not list(memory.iterdir())


def arrays(checkpoint: Path) -> dict[str, jax.Array]:
    reader = CheckpointReader(epath.Path(checkpoint))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return reader.load(dict.fromkeys(reader.shapes, here))


@pytest.mark.slow
def test_the_preemption_notice_of_jax_makes_all_save_and_leave(tmp_path: Path) -> None:
    flags = f'--job_log_dir={tmp_path}', '--steps_per_execution=4'
    ended = job(_JOBS, 'preempt', *flags)
    told = all_passed(ended)
    assert told == ended[1].out
    found = re.fullmatch(r'stopped at step (\d+)', told)
    assert found is not None
    assert 4 <= int(found[1]) < 4000
    assert int(found[1]) % 4 == 0
    assert (tmp_path / 'checkpoints' / found[1]).is_dir()


@pytest.mark.slow
def test_several_processes_pause_at_a_measurement_of_which_one_has_had_enough(
    tmp_path: Path, undisturbed: Path
) -> None:
    first, other = job(_JOBS, 'pause', f'--job_log_dir={tmp_path}')
    told = all_passed([first, other])
    # Tokens of both, and seconds by the clock of the first.
    spent = f'{12 * 8 * 16}.0, '
    assert told.startswith(f'paused at 4, paused at 4, paused at 8, ended at 12, {spent}')
    assert other.out == told
    assert metrics(tmp_path) == metrics(undisturbed)
