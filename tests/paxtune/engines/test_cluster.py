"""The base of engines on clusters, with jobs that need none."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from paxtune import tune
from paxtune.engines.base import Job
from paxtune.engines.cluster import Cluster
from paxtune.engines.cluster_worker import ClusterWorker, Outcome
from paxtune.engines.job_keeper import JobKeeper
from paxtune.engines.network_service import network_service
from paxtune.running.supervisor import DETACHED, STOPPED, WorkerError
from paxtune.running.tuner import Tuner
from paxtune.service.address import Service
from paxtune.service.remote_store import RemoteStore
from paxtune.study.transitions import new_worker
from tests.factories.function_studies import PARALLEL, process_of
from trainer.symbolic.errors import UserError

OVER, PREEMPTED = Outcome(0), Outcome(DETACHED)
LOST = Outcome(DETACHED, 'its node is gone', True)


class FakeJobs:
    """Jobs that end as the given outcomes say, one after another; the rest run."""

    def __init__(self, *ends: Outcome | None) -> None:
        self._ends = dict(enumerate(ends, 1))
        self._live: set[str] = set()
        self._submitted = 0
        self.calls: list[str] = []

    def submit(self, count: int) -> set[str]:
        self.calls.append('submit')
        new = {str(self._submitted + i) for i in range(1, count + 1)}
        self._submitted += count
        self._live |= {each for each in new if self._ends.get(int(each)) is None}
        return new

    def live(self) -> set[str]:
        return {*self._live}

    def outcomes(self) -> dict[str, Outcome]:
        ended = [i for i, end in self._ends.items() if end is not None and i <= self._submitted]
        return {str(i): end for i in ended if (end := self._ends.pop(i)) is not None}

    def _end(self, call: str) -> None:
        self.calls.append(call)
        self._live.clear()

    def leave(self) -> None:
        self._end('leave')

    def withdraw(self) -> None:
        self._end('withdraw')

    def cancel(self) -> None:
        self._end('cancel')


def calls(jobs: FakeJobs, count: int, asked: Callable[[], bool] = lambda: False) -> list[str]:
    JobKeeper(jobs, count, Path('logs'), look_seconds=0.0).run(asked)
    return jobs.calls


def test_lost_jobs_are_submitted_again_until_one_finds_no_more_trials() -> None:
    assert calls(FakeJobs(LOST, PREEMPTED, LOST, LOST, OVER), 1) == ['submit'] * 5


def test_jobs_that_wait_are_withdrawn_when_one_finds_no_more_trials() -> None:
    assert calls(FakeJobs(OVER, None), 2) == ['submit', 'withdraw']


def test_an_interrupt_lets_jobs_leave() -> None:
    asked = iter([False, True])
    assert calls(FakeJobs(), 2, lambda: next(asked)) == ['submit', 'leave']


@pytest.mark.parametrize(
    ('ends', 'error', 'message'),
    [
        ([LOST] * 3, WorkerError, '3 jobs in a row ended without a measurement'),
        ([Outcome(2, 'a bad flag')], UserError, 'a bad flag'),
        ([Outcome(STOPPED, 'a bad trial')], WorkerError, 'a bad trial'),
    ],
)
def test_errors_of_jobs_cancel_the_others(
    ends: list[Outcome], error: type[Exception], message: str
) -> None:
    jobs = FakeJobs(*ends)
    with pytest.raises(error, match=message):
        calls(jobs, 1)
    assert jobs.calls[-1] == 'cancel'


class Here(Cluster):
    """A cluster whose only job runs in this process."""

    def serve(self, directory: Path) -> AbstractContextManager[Service]:
        return network_service(directory, host='127.0.0.1')

    def keep(self, job: Job, worker: ClusterWorker, look: Callable[[], None]) -> None:
        assert isinstance(job.study.store, RemoteStore)
        job.study.store.worker = new_worker()
        Tuner(job.study, job.runner, (), job.should_interrupt).run()


def test_a_study_is_open_when_its_cluster_has_ended(tmp_path: Path) -> None:
    with tune(process_of, engine=Here(), job_log_dir=tmp_path, **PARALLEL) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 4
        assert study.add({'x': 0.5}).id == 5
