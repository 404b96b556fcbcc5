"""Several processes as one worker of a service: real ones, with simulated devices."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paxtune.engines.remote import Remote
from paxtune.running.supervisor import DETACHED
from paxtune.service.address import Service
from paxtune.service.study_location import ServiceLocation
from paxtune.study.plan import SearchPlan
from paxtune.study.redefinition import fingerprint
from tests.factories import multi_process as joined
from tests.paxtune.engines.conftest import told
from tests.paxtune.test_serve import served
from tests.servers.processes import Ended, all_passed, job

pytestmark = pytest.mark.slow

_AGAIN = (DETACHED, 3, -signal.SIGABRT)  # JAX aborts where it notices a loss first.


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(f'--database={tmp_path}/db', '--port=0', '--lease_seconds=15') as (_, endpoint, _):
        yield Service(endpoint, 'joined')


def kept(service: Service) -> list[Any]:
    with ServiceLocation(service).open() as study:
        return told(study)


def history(service: Service, trial: int) -> list[str]:
    with ServiceLocation(service).open() as study:
        return [event.event for event in study.trial(trial).record.history]


class Group:
    """Starts processes that are one worker of a study."""

    def __init__(self, service: Service, directory: Path) -> None:
        experiment = joined.Search().rebind({'search.budget.trials': 2})
        study, held = Remote(service).open(directory, SearchPlan.compile(experiment), [])
        with held, study:
            definition = fingerprint(study.record)
        self._directory = directory
        self._flags = [
            f'--endpoint={service.endpoint}',
            f'--study={service.study}',
            f'--job_log_dir={directory}',
            f'--definition={definition}',
            '--modules=tests.factories.multi_process',
        ]

    def run(self, worker: str, **how: Any) -> list[Ended]:
        names = [f'--worker={worker}', f'--log={self._directory}/logs/{worker}.jsonl']
        return job('paxtune.worker', *self._flags, *names, **how)


def test_the_processes_of_a_worker_end_together_and_begin_again(
    tmp_path: Path, undisturbed: list[Any], service: Service
) -> None:
    group = Group(service, tmp_path / 'runs')
    interrupted = group.run('a', kill={1: 'int:5'})
    assert [each.code for each in interrupted] == [130, 130], interrupted
    assert history(service, 1)[-1] == 'released'
    killed = group.run('b', kill={1: 'step:7'})
    assert killed[1].code == -signal.SIGKILL
    assert killed[0].code in _AGAIN, killed
    all_passed(group.run('c'))
    assert kept(service) == undisturbed[:2]
    assert {'claimed', 'lost', 'resumed'} <= set(history(service, 2)), history(service, 2)
    for name in ('a', 'a.1'):  # Each process has its own.
        assert 'paused' in (tmp_path / 'runs' / 'logs' / f'{name}.jsonl').read_text()


def test_a_worker_of_several_processes_refuses_another_study(
    tmp_path: Path, service: Service
) -> None:
    group = Group(service, tmp_path)
    ended = group.run('a', own={1: ['--definition=other']})
    assert [each.code for each in ended] == [2, 2], ended
    assert 'process 1: --study: the service has another study of that name' in ended[0].err
    with ServiceLocation(service).open() as study:
        assert not study.trials
