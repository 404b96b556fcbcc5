"""Checks of a study's files, at its end and while it runs."""

import contextlib
import fcntl
import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.chaotic.checks import Check
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory
from trainer.runtime.directory import LOCK_FILE
from trainer.runtime.metrics_file import METRICS

_LEFT = re.compile(r'\.partial$|\.orbax-checkpoint-tmp')
_ATTEMPT = re.compile(r'attempt_\d+')
_SECONDS = 0.3


def check_files(study: Study) -> list[Check]:
    """Looks at the files of a study that is done."""
    directory = study.directory
    assert isinstance(directory, Path)
    locks = sorted(each for each in directory.rglob('*') if _is_lock(each))
    metrics = [found for trial in study.trials for found in _metrics(directory, trial)]
    return [
        Check('metrics of attempts are in order', len(metrics), list(filter(None, metrics))),
        Check('attempts at the end leave no partial file', *_left(study, directory)),
        Check('locks are free', len(locks), [f'{each} is held' for each in locks if _held(each)]),
    ]


def _is_lock(path: Path) -> bool:
    return path.name == LOCK_FILE or path.suffix == '.lock'


def _held(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _metrics(directory: Path, trial: Trial) -> Iterator[str]:
    """Yields for each file of metrics what is wrong with it, or ''."""
    for number in range(1, trial.attempt + 1):
        file = Path(str(attempt_directory(directory, trial, number))) / METRICS
        if not file.exists():
            continue
        lines = file.read_text().splitlines(keepends=True)
        is_last = number == trial.attempt and trial.status == 'completed'
        if lines and not lines[-1].endswith('\n') and not is_last:
            lines.pop()  # Its process was killed, or the disk was full.
        try:
            records = [json.loads(line) for line in lines]
        except ValueError:
            yield f'{file} has a line that is not JSON'
            continue
        steps = [record['step'] for record in records]
        values = [(r['step'], name) for r in records for name in r.keys() - {'step', 'time'}]
        missing = {each.step for each in trial.measurements} - set(steps) if is_last else set()
        if steps != sorted(steps) or len(values) != len(set(values)):
            yield f'{file} has the steps {steps}'
        else:
            yield f'{file} has no steps {sorted(missing)}' if missing else ''


def _left(study: Study, directory: Path) -> tuple[int, list[str]]:
    """Looks for partial files of the last attempts, which were not killed."""
    count, wrong = 0, []
    for trial in study.trials:
        last = Path(str(attempt_directory(directory, trial)))
        if trial.status != 'completed' or not last.exists():
            continue
        count += 1
        wrong += [
            f'{path} is left'
            for path in last.rglob('*')
            if _LEFT.search(path.name)
            # The first attempt's directory has those of the others.
            and not _ATTEMPT.search(str(path.relative_to(last)))
        ]
    return count, wrong


class Writers(threading.Thread):
    """Looks, until `stop`, which workers have files of each attempt's directory open to write.

    Attributes:
        looks: how often it looked at a directory in which a process wrote.
        wrong: directories in which two processes wrote at the same time.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._ending = threading.Event()
        self.looks = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._ending.wait(_SECONDS):
            writers = defaultdict[Path, list[psutil.Process]](list)
            for process in workers_of(self._directory):
                for attempt in self._written(process):
                    writers[attempt].append(process)
            self.looks += len(writers)
            for attempt, found in writers.items():
                # A writer that was seen first may have ended before the other began.
                if len(found) > 1 and all(attempt in self._written(each) for each in found[:-1]):
                    pids = ', '.join(str(each.pid) for each in found)
                    self.wrong.append(f'processes {pids} write in {attempt}')

    def stop(self) -> None:
        """Ends it."""
        self._ending.set()
        self.join()

    def _written(self, process: psutil.Process) -> set[Path]:
        with contextlib.suppress(psutil.Error):
            opened = [Path(each.path) for each in process.open_files() if each.mode != 'r']
            found = [self._attempt(each) for each in opened]
            return {each for each in found if each is not None}
        return set()

    def _attempt(self, file: Path) -> Path | None:
        """Returns the directory of the attempt that a file belongs to; None for other files."""
        if self._directory not in file.parents:
            return None
        parts = file.relative_to(self._directory).parts
        if len(parts) < 3 or parts[0] != 'trials':
            return None
        depth = 3 if _ATTEMPT.fullmatch(parts[2]) else 2
        return self._directory.joinpath(*parts[:depth])


def workers_of(job_log_dir: Path) -> list[psutil.Process]:
    """Lists the workers of a directory, on any machine."""
    flag = f'--job_log_dir={job_log_dir}'
    found = psutil.process_iter(['pid', 'cmdline', 'status'])
    running = [each for each in found if each.info['status'] != psutil.STATUS_ZOMBIE]
    return [
        each
        for each in running
        if flag in (each.info['cmdline'] or []) and 'paxtune.worker' in each.info['cmdline']
    ]
