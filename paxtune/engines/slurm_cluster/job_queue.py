"""The jobs of a study in SLURM's queue."""

import getpass
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from paxtune.engines.cluster_worker import ClusterWorker, Outcome
from paxtune.engines.slurm_cluster import options
from paxtune.engines.slurm_cluster.worker_job import FOLDER, LEAVING, WorkerJob
from trainer.symbolic.errors import UserError

_MAX_SAVING_SECONDS = 120
_ALWAYS = 10**6


class JobQueue:
    """Submits, counts and ends the jobs that have the name of a study.

    Attributes:
        folder: the files of the jobs.
    """

    def __init__(
        self, directory: Path, name: str, given: Mapping[str, str], worker: ClusterWorker
    ) -> None:
        """Prepares to submit jobs, and forgets the end of an earlier search.

        Args:
            directory: of the study, which all nodes see.
            name: of the jobs; no other study has it.
            given: options of `sbatch`.
            worker: runs in each job.

        Raises:
            UserError: submitit or SLURM is not installed.
        """
        self.folder = directory / FOLDER
        self._name, self._job = name, WorkerJob(worker)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._executor = _executor(self.folder, _parameters(name, given))
        (self.folder / LEAVING).unlink(missing_ok=True)
        self.outcomes()

    def submit(self, count: int) -> set[str]:
        """Submits jobs, as an array; returns their ids. Raises UserError if SLURM refuses them."""
        self._executor.update_parameters(array_parallelism=count)
        try:
            with self._executor.batch():
                jobs = [self._executor.submit(self._job) for _ in range(count)]
        except Exception as error:  # submitit raises no class of its own.
            raise UserError(f'--slurm: SLURM refuses the jobs: {error}') from error
        return {each.job_id for each in jobs}

    def live(self) -> set[str] | None:
        """Lists the ids of jobs that wait, run or end; None where SLURM does not answer."""
        squeue = ['squeue', '--noheader', '--array', '--format=%i', *self._own]
        done = subprocess.run(squeue, capture_output=True, text=True, check=False)
        if done.returncode:
            logging.warning('squeue: %s', done.stderr.strip())
            return None
        return set(done.stdout.split())

    def leave(self) -> None:
        """Lets workers save and end; the signal alone sets them no limit of time."""
        (self.folder / LEAVING).touch()  # For jobs that begin just now.
        _scancel('--signal=TERM', '--state=RUNNING', *self._own)

    def withdraw(self) -> None:
        """Takes the jobs back that have not begun."""
        _scancel('--state=PENDING', *self._own)

    def cancel(self) -> None:
        """Ends all jobs, as SLURM does: SIGTERM, and SIGKILL after `KillWait`."""
        _scancel(*self._own)

    def outcomes(self) -> dict[str, Outcome]:
        """Takes the outcomes of jobs that have ended, by id."""
        found = {}
        for file in self.folder.glob('*.json'):
            found[file.stem] = Outcome(**json.loads(file.read_text()))
            file.unlink()
        return found

    @property
    def _own(self) -> list[str]:
        return [f'--user={getpass.getuser()}', f'--name={self._name}']


def _scancel(*flags: str) -> None:
    done = subprocess.run(['scancel', *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        logging.warning('scancel: %s', done.stderr.strip())


def _parameters(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the parameters of submitit for options of `sbatch`."""
    minutes = options.minutes(given['time'])
    counted = {'time', 'nodes', 'ntasks-per-node'}
    # Workers can import all modules of this process.
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    return {
        'job_name': name,
        'time': minutes,
        'nodes': int(given.get('nodes', 1)),
        'ntasks_per_node': int(given.get('ntasks-per-node', 1)),
        'signal_delay_s': min(_MAX_SAVING_SECONDS, minutes * 60 // 6),
        'stderr_to_stdout': True,
        'setup': [f'export PYTHONPATH={shlex.quote(path)}'],
        'srun_args': ['--input=none', '--kill-on-bad-exit=1'],
        'additional_parameters': {
            'requeue': True,
            **{each: value or True for each, value in given.items() if each not in counted},
        },
    }


def _executor(folder: Path, parameters: Mapping[str, Any]) -> Any:
    from submitit import SlurmExecutor

    try:
        executor = SlurmExecutor(folder, max_num_timeout=_ALWAYS)
    except RuntimeError as error:
        raise UserError(f'--engine=slurm: {error} Run the search where sbatch is') from error
    executor.update_parameters(**parameters)
    return executor
