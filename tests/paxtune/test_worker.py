import datetime
from pathlib import Path
from typing import Any

import pytest

from paxtune import worker
from paxtune.engines.leased import Heartbeat, HeartbeatCallback
from paxtune.running.supervisor import DETACHED
from paxtune.running.worker_arguments import WorkerArguments
from paxtune.service.client import Client
from paxtune.service.remote_store import RemoteStore
from paxtune.study.record import Failures, Status, TrialRecord
from paxtune.study.transitions import WorkerLoss, claim, lose
from tests.servers.processes import command, passed

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def test_a_trial_that_comes_further_with_each_worker_is_never_given_up() -> None:
    record = TrialRecord({}, id=1)
    for begin in range(0, 2000, 100):
        no_service: Any = None
        heartbeat = Heartbeat(no_service)
        counted: Any = HeartbeatCallback(heartbeat)
        heartbeat.steps = 7  # Steps of another trial.
        record = claim(record, 'a', NOW)
        counted.on_trial_start(None, None)
        heartbeat.steps += 50
        if begin:
            counted.on_trial_resume(None, None, begin)
        heartbeat.steps += 50
        loss = WorkerLoss('preempted', is_dead=True)
        record = lose(record, loss, 1, heartbeat.steps, NOW)
        assert record.failures == Failures(losses=1, furthest=begin + 100)
    assert record.status is Status.ACTIVE


def test_a_worker_that_is_cut_off_before_its_first_trial_ends_as_detached(tmp_path: Path) -> None:
    client = Client('127.0.0.1:1', 'toys', None)
    client.close()
    no_log: Any = None
    work = WorkerArguments('')
    assert worker.run(RemoteStore(client, 'a'), tmp_path, no_log, work) == DETACHED


@pytest.mark.parametrize(
    ('module', 'flags', 'changes'),
    [
        ('trainer.main', [], ['task.learner.learning_rate=0.01']),
        pytest.param('paxtune.search', ['--num_trials=1'], [], marks=pytest.mark.slow),
        pytest.param(
            'paxtune.search', ['--num_trials=1', '--workers=1'], [], marks=pytest.mark.slow
        ),
    ],
)
def test_a_command_collects_garbage_once_it_trains(
    tmp_path: Path, module: str, flags: list[str], changes: list[str]
) -> None:
    exp = ['--exp=tests.factories.faulty_experiments.CollectingRates', f'--job_log_dir={tmp_path}']
    passed(command(module, *exp, *flags, '--set', 'train.num_train_steps=2', *changes))
