"""Runs of paxtune, Optuna and Ray Tune as commands, each in its own environment."""

import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.environments import ROOT, python_of
from benchmarks.turnover.setting import Setting, TrialLog, read_logs
from trainer.runtime.metric_writer import read_metrics

OURS, OPTUNA, RAY = 'paxtune', 'optuna', 'ray'
LOSS = 'eval/loss'
_TIMEOUT = 3600.0


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a tuner.

    Attributes:
        began: seconds since the epoch.
        seconds: wall clock of its process, from start to exit.
        cpu_seconds: of its process and of children that it waited for.
        trials: in the order of their ends.
    """

    began: float
    seconds: float
    cpu_seconds: float
    trials: Sequence[TrialLog]

    def beyond(self) -> list[float]:
        """Seconds beyond steps and evaluations of each trial, from the second one on.

        A trial takes the time from the end of the one before it to its own.
        """
        pairs = zip(self.trials, self.trials[1:], strict=False)
        return [
            one.ended - before.ended - one.step_seconds - one.eval_seconds for before, one in pairs
        ]

    def seconds_to(self, target: float) -> float | None:
        """Seconds from the start to the first evaluation at the target; None without one."""
        when = [at for trial in self.trials for at, _, loss in trial.losses if loss <= target]
        return min(when) - self.began if when else None


def write_text(folder: Path) -> None:
    """Writes the text for loops that know nothing of paxtune."""
    from benchmarks.turnover.experiment import numbers

    experiment = numbers()
    experiment.train_input.corpus().data.tofile(folder / 'train')
    experiment.eval_inputs['eval'].corpus().data.tofile(folder / 'eval')


def run(tuner: str, setting: Setting, base: Path, name: str) -> Run:
    """Runs a tuner.

    Args:
        tuner: one of `OURS`, `OPTUNA` and `RAY`.
        setting: of the run.
        base: a directory for all runs, which has the text, and caches of compiled programs.
        name: of a new directory there.
    """
    folder = base / name
    folder.mkdir()
    if tuner == OURS:
        command = _our_command(setting, folder)
    else:
        for part in ('train', 'eval'):
            (folder / part).symlink_to(base / part)
        module = f'benchmarks.turnover.{tuner}_run'
        command = [str(python_of(tuner)), '-m', module, setting.to_json(), str(folder)]
    given = {'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(base / 'cache'), 'JAX_PLATFORMS': 'cpu'}
    given |= {'RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS': '0', 'RAY_USAGE_STATS_ENABLED': '0'}
    environment = os.environ | given
    environment.pop('JAX_COMPILATION_CACHE_DIR', None)
    with (folder / 'output').open('w') as output:
        began, clock, cpu = time.time(), time.monotonic(), _cpu_of_children()
        ended = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT,
            check=False,
        )
        seconds, cpu = time.monotonic() - clock, _cpu_of_children() - cpu
    if ended.returncode:
        raise RuntimeError(f'{tuner} failed:\n{(folder / "output").read_text()[-4000:]}')
    if tuner == OURS:
        return Run(began, seconds, cpu, our_logs(folder / 'study', setting.eval_batches))
    return Run(began, seconds, cpu, read_logs(folder / 'trials.jsonl'))


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _our_command(setting: Setting, folder: Path) -> list[str]:
    values = {
        'train.num_train_steps': setting.steps,
        'task.learner.schedule.decay_steps': setting.steps,
        'train.evaluation.every': setting.every,
        'eval_inputs.eval.max_bytes': setting.eval_bytes,
    }
    flags = [f'--num_trials={setting.trials}', f'--seed={setting.seed}']
    flags += [] if setting.prunes else ['--scheduler=none']
    flags += ['--algorithm=random_search'] if setting.search == 'random' else []
    flags += [] if setting.target is None else [f'--target_reward={setting.target}']
    return [
        *(sys.executable, '-m', 'paxtune.search', '--exp=benchmarks.turnover.experiment.numbers'),
        *(f'--job_log_dir={folder / "study"}', *flags),
        *(f'--set={path}={value}' for path, value in values.items()),
    ]


def our_logs(study: Path, batches: int) -> list[TrialLog]:
    """Reads the trials of a study of paxtune from their files.

    Args:
        study: its directory.
        batches: of an evaluation.
    """
    logs = [_our_log(path.parent, batches) for path in study.glob('trials/*/trial.json')]
    return sorted(logs, key=lambda log: log.ended)


def _our_log(folder: Path, batches: int) -> TrialLog:
    trial = json.loads((folder / 'trial.json').read_text())
    records = [record for record in read_metrics(folder / 'metrics.jsonl') if LOSS in record]
    log = TrialLog([(each['time'], each['step'], each[LOSS]) for each in records])
    if trial['ended'] is not None:
        log.ended = datetime.datetime.fromisoformat(trial['ended']).timestamp()
    if not trial['measurements']:
        return log
    last = trial['measurements'][-1]
    metrics = last['metrics']
    log.num_params = int(metrics['num_params'])
    # Their clock starts after the first step, which may compile.
    log.step_seconds = metrics['spent_seconds'] * last['step'] / max(last['step'] - 1, 1)
    log.eval_seconds = sum(batches / each['eval_steps_per_second'] for each in records)
    return log
