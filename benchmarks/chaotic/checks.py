"""Checks of a study at its end, after any faults."""

import collections
import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.chaotic.experiment import FATES, REASONS
from paxtune.algorithms import Algorithm, Exhausted, Suggestion, SuggestionContext
from paxtune.algorithms.base import Observation
from paxtune.study.feasibility import Feasibility
from paxtune.study.study import Study
from paxtune.study.suggester import Suggester
from paxtune.study.trial import Trial
from trainer.runtime.throughput import THROUGHPUT_METRICS

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that must hold.

    Attributes:
        what: of what.
        count: how often it was looked at.
        wrong: where it does not hold.
    """

    what: str
    count: int
    wrong: list[str]

    def __str__(self) -> str:
        lines = [f'  {each}' for each in self.wrong[:_SHOWN]]
        more = len(self.wrong) - len(lines)
        head = f'{"FAILED" if self.wrong else "ok":6} {self.count:5} {self.what}'
        return '\n'.join([head, *lines, *([f'  and {more} more'] if more else [])])


def fate(trial: Trial) -> str | None:
    """Fate of a trial by its decisions; None for one without a fault."""
    return FATES.get(trial.decisions['train_input.fate'])


def check(study: Study, undisturbed: Study, num_trials: int, logs: list[Path]) -> list[Check]:
    """Looks at a study that is done.

    Args:
        study: what the faults happened to.
        undisturbed: trials of the decisions of those that are well, which nothing happened to.
        num_trials: how many trials it was to have.
        logs: the structured logs of its workers.
    """
    trials, again = study.trials, {_key(trial): trial for trial in undisturbed.trials}
    entries = [entry for log in logs for entry in _entries(log)]
    return [
        Check('trials are terminal', len(trials), _not_terminal(trials, num_trials)),
        Check('trials are infeasible by their decisions alone', len(trials), _fates(trials)),
        Check('trials count once', len(trials), _twice(trials, entries)),
        _acknowledged(trials, entries),
        Check('rewards equal the undisturbed ones', len(again), _rewards(trials, again)),
        Check('measurements equal the undisturbed ones', *_measurements(trials, again)),
        _history(study, again),
    ]


def _not_terminal(trials: list[Trial], num_trials: int) -> list[str]:
    wrong = [f'trial {trial.id} is {trial.state}' for trial in trials if not trial.is_terminal]
    numbers = [trial.id for trial in trials]
    if numbers != list(range(1, num_trials + 1)):
        wrong.append(f'expected trials 1 to {num_trials}: {numbers}')
    return wrong


def _fates(trials: list[Trial]) -> list[str]:
    wrong = []
    for trial in trials:
        expected, reason = fate(trial), trial.reason
        if (expected is None) != (reason is None) or (
            expected is not None and REASONS[expected] not in str(reason)
        ):
            wrong.append(f'trial {trial.id} is {trial.status} ({reason}); its fate: {expected}')
    return wrong


def _twice(trials: list[Trial], entries: list[dict[str, Any]]) -> list[str]:
    counted = collections.Counter(map(_key, trials))
    wrong = [f'{count} trials are {key}' for key, count in counted.items() if count > 1]
    logged = collections.Counter(entry['trial'] for entry in entries if 'outcome' in entry)
    for trial in trials:
        ended = sum(event['event'] == 'ended' for event in trial.history)
        if ended != 1 or logged[trial.id] > 1:
            wrong.append(f'trial {trial.id} ended {ended} times, in the logs {logged[trial.id]}')
    return wrong


def _acknowledged(trials: list[Trial], entries: list[dict[str, Any]]) -> Check:
    """Compares the study with the entries that workers logged after an acknowledgement."""
    ends: Any = {trial.id: [trial.status, list(trial.rewards)] for trial in trials}
    measured: Any = {
        (trial.id, each.step): [list(each.rewards), dict(each.metrics)]
        for trial in trials
        for each in trial.measurements
    }
    count, wrong = 0, []
    for entry in entries:
        if 'metrics' in entry:
            kept = measured.get((entry['trial'], entry['step']))
            logged = [entry['rewards'], entry['metrics']]
        elif 'outcome' in entry:
            kept, logged = ends.get(entry['trial']), [entry['outcome'], entry['rewards']]
        else:
            continue
        count += 1
        if kept != logged:
            wrong.append(f'trial {entry["trial"]}: {logged} was acknowledged; there is {kept}')
    return Check('acknowledged measurements and ends are kept', count, wrong)


def _rewards(trials: list[Trial], again: Mapping[Any, Trial]) -> list[str]:
    return [
        f'trial {trial.id}: {trial.reward!r}, undisturbed {other.reward!r}'
        for trial in trials
        if (other := again.get(_key(trial))) is not None and trial.reward != other.reward
    ]


def _measurements(trials: list[Trial], again: Mapping[Any, Trial]) -> tuple[int, list[str]]:
    count, wrong = 0, []
    for trial in trials:
        if _key(trial) in again:
            one, other = _measured(trial), _measured(again[_key(trial)])
            count += len(one)
            wrong += [
                f'trial {trial.id}, step {step}: {one.get(step)}, undisturbed {other.get(step)}'
                for step in sorted({*one, *other})
                if one.get(step) != other.get(step)
            ]
    return count, wrong


def _measured(trial: Trial) -> dict[int, Any]:
    """All that was measured of a trial but how fast it was."""
    return {
        each.step: {
            name: value for name, value in each.metrics.items() if name not in THROUGHPUT_METRICS
        }
        for each in trial.measurements
    }


def _history(study: Study, again: Mapping[Any, Trial]) -> Check:
    """Compares the trials with the observations of an algorithm, in a process that just opened."""
    expected = []
    for trial in study.trials:
        if _key(trial) in again:
            reward = again[_key(trial)].reward
            # It is to be minimized.
            scores = () if reward is None else (-reward,)
            expected.append(Observation(trial.id, trial.by_id, 'completed', scores))
        else:
            expected.append(Observation(trial.id, trial.by_id, 'infeasible'))
    observed = observed_history(study)
    wrong = [
        f'{one}, expected {other}'
        for one, other in zip(observed, expected, strict=False)
        if one != other
    ]
    if len(observed) != len(expected):
        wrong.append(f'there are {len(observed)}, expected {len(expected)}')
    return Check("the algorithm's history equals the trials", len(observed), wrong)


def observed_history(study: Study) -> list[Observation]:
    """The history that the study's algorithm would be asked with."""
    search = study.search.clone(deep=True)
    search.rebind(algorithm=_Witness(), initial_trials=[])
    suggestions = Suggester(Feasibility(study.space, search), [], lambda: study.trials)
    try:
        suggestions.next(len(study.trials) + 1)
    except _Observed as observed:
        return observed.history
    raise AssertionError('a witness suggests nothing')


class _Observed(Exhausted):
    """Carries a history out of a search."""

    def __init__(self, history: list[Observation]) -> None:
        super().__init__()
        self.history = history


class _Witness(Algorithm):
    """Suggests nothing, and raises its observations."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        raise _Observed(list(context.observations))


def _key(trial: Trial) -> tuple[Any, ...]:
    return tuple(sorted(trial.decisions.items()))


def _entries(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, but for those that a full disk has cut off."""
    for line in log.read_text().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)
