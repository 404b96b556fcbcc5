"""Jobs of several processes: `python -m tests.factories.process_jobs JOB`, by `processes.job`."""

import argparse
import os
import signal
import threading
import time

import jax
import numpy as np

from tests.factories import multi_process as joined
from trainer import command, mesh
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run
from trainer.program.costs import step_cost
from trainer.runtime import processes
from trainer.runtime.interrupt import Interrupt
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.errors import OtherProcessError, UserError

_AT = 4


def talk(args: argparse.Namespace) -> None:
    """Sends messages between two processes, outside of training."""
    processes.start(args)
    _agreements()
    _failures()
    _signals_while_waiting()
    _shares()
    assert not processes.agree()
    print(f'process {processes.index()} is done', flush=True)


def step_time(args: argparse.Namespace) -> None:
    """Prints how long a step of an experiment takes."""
    processes.start(args)
    with processes.together():
        print(f'{step_cost(joined.Text())["step_seconds"]!r}', flush=True)


def pause(args: argparse.Namespace) -> None:
    """Trains until each measurement, of which only the first process says that it is enough."""
    processes.start(args)
    told = []
    for at in (4, 4, 8, 12):
        heard: list[int] = []

        def enough(at: int = at, heard: list[int] = heard) -> bool:
            return processes.is_first() and heard[-1:] == [at]

        try:
            for each in run(joined.Rolling(), args.job_log_dir, enough):
                heard.append(each.step)
                spent = each.metrics
            told.append(f'ended at {heard[-1]}')
        except Interrupted as paused:
            told.append(f'paused at {paused.step}')
    print(*told, spent['spent_tokens'], spent['spent_seconds'], sep=', ')


def preempt(args: argparse.Namespace) -> None:
    """Trains; a cluster scheduler announces the end to process 1 before its fourth step."""
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(args.coordinator, args.num_processes, args.process_id)
    asked = 0

    def told() -> bool:
        nonlocal asked
        asked += 1
        if asked == _AT and args.process_id == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    made = joined.Text()
    made.rebind({'train.num_train_steps': 4000, 'train.checkpoints.every': 1000})
    made.rebind({'train.evaluation.every': 4000, 'train.summary_interval_steps': 500})
    made.rebind({'train.steps_per_execution': args.steps_per_execution})
    try:
        list(run(made, args.job_log_dir, told))
    except Interrupted as stopped:
        print(f'stopped at step {stopped.step}')


def _raised(error: Exception | None) -> Exception | None:
    """Runs a block in which one process may fail."""
    try:
        with processes.together():
            if error is not None:
                raise error
            for _ in range(3):
                assert not processes.agree()
    except Exception as raised:
        return raised
    return None


def _agreements() -> None:
    first = processes.is_first()
    assert not processes.agree()
    assert processes.agree(first)
    assert processes.agree(not first)
    assert processes.gather(processes.index()) == [0, 1]
    assert processes.gather('é' * 3_000_000)[1] == 'é' * 3_000_000
    numbers = [0.1, float('inf'), 1e-300]
    assert processes.broadcast(numbers if first else None) == numbers


def _failures() -> None:
    first = processes.is_first()
    assert _raised(None) is None
    mine = ValueError('mine')
    for is_mine in (first, not first):
        raised = _raised(mine if is_mine else None)
        if is_mine:
            assert raised is mine
        else:
            assert isinstance(raised, OtherProcessError), raised
            assert str(raised) == f'process {1 - processes.index()}: ValueError: mine'
    assert isinstance(_raised(SkipTrial('odd') if first else None), SkipTrial)
    # Both fail at once, each in its own way.
    assert isinstance(_raised(KeyError('k') if first else UserError('u')), KeyError | UserError)
    # Common knowledge, and what follows from it, is not sent again.
    try:
        with processes.together():
            try:
                with processes.together():
                    if first:
                        raise mine
            except Exception as error:
                raise UserError('it follows') from error
    except UserError as error:
        assert str(error) == 'it follows'
    assert not processes.agree()


def _signals_while_waiting() -> None:
    with Interrupt() as interrupt:
        if not processes.is_first():
            time.sleep(1.5)
        else:
            ours = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
            ours.start()
            seen: list[bool] = []
            look = threading.Timer(1.0, lambda: seen.append(interrupt.requested()))
            look.start()
        assert processes.agree(processes.is_first())
        if processes.is_first():
            assert seen == [True], 'the handler has to run while the process waits'


def _shares() -> None:
    devices = jax.devices()
    assert len(devices) == 4
    own = (2, processes.index())
    wanted = {
        mesh.Mesh(data=4): own,
        mesh.Mesh(data=1, tensor=4): (1, 0),
        mesh.Mesh(data=2, tensor=2): own,
        mesh.Mesh(data=2, sequence=2): own,
        mesh.Mesh(data=1, sequence=4): (1, 0),
        # Each process is a slice.
        mesh.Mesh(data=1, fsdp=2, dcn_data=2): own,
        mesh.Mesh(data=2, fsdp=1, dcn_fsdp=2, dcn_data=1): own,
        mesh.Mesh(data=2, dcn_sequence=2, dcn_data=1): (1, 0),
    }
    for asked, share in wanted.items():
        made = asked.make()
        assert made.data_shard() == share, asked
    halves = mesh.Mesh(data=2, dcn_sequence=2, dcn_data=1).make().mesh.devices
    assert [device.process_index for device in halves.flat] == [0, 1, 0, 1]
    # Each process has an example of each group of two.
    mixed = mesh.Mesh(data=2, tensor=2).make([devices[i] for i in (0, 2, 1, 3)])
    assert mixed.data_shard() == (1, 0)
    uneven = jax.sharding.Mesh(np.array(devices)[[0, 1, 2]], ('data',))
    try:
        mesh.Arrangement(uneven).data_shard()
    except ValueError as error:
        assert 'cannot divide the examples' in str(error)
    else:
        raise AssertionError('shares of unequal size')


def main() -> None:
    flags: argparse.ArgumentParser = command.parser(__doc__)
    command.add_process_flags(flags)
    flags.add_argument('job', choices=sorted(_JOBS))
    flags.add_argument('--job_log_dir')
    flags.add_argument('--steps_per_execution', type=int)
    args = flags.parse_args()
    _JOBS[args.job](args)


_JOBS = {each.__name__: each for each in (talk, step_time, pause, preempt)}

if __name__ == '__main__':
    main()
