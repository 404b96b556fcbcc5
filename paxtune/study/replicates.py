"""Trials that try the same decisions again with another training seed: repeats.

The trials of a decision are the one that tried it first, its repeats, and retries of any of these,
which take the place of what they retry. All here is a function of recorded trials.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from paxtune.algorithms import Observation
from paxtune.objectives.shrinkage import mean, shrunk, standard_error

if TYPE_CHECKING:
    from paxtune.study.trial import Trial

ORIGIN = 'repeat'
"""The origin of a repeat."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was tried, once or more often.

    Attributes:
        first: the trial that tried it first.
        trials: those that count, by their `repeat`.
    """

    first: 'Trial'
    trials: list['Trial']

    @property
    def is_spoilt(self) -> bool:
        """Whether one of its trials was stopped early, or is infeasible."""
        return self.is_spoilt_without(frozenset())

    def is_spoilt_without(self, running: frozenset[int]) -> bool:
        """The same, of what is known where some trials count as running still."""
        ended = [trial for trial in self.trials if trial.id not in running]
        return any(trial.outcome in ('stopped', 'infeasible') for trial in ended)

    def missing(self, wanted: int) -> list[tuple['Trial', int]]:
        """The repeats, (of which trial, its `repeat`), that it takes to have tried it so often."""
        known = {trial.repeat for trial in self.trials}
        first = self.trials[0]
        return [(first, number) for number in range(2, wanted + 1) if number not in known]


@dataclasses.dataclass(frozen=True)
class Standing:
    """How good a decision is, by its trials.

    Attributes:
        trial: the one that stands for it: the trial with the median reward (of the first objective,
            where there are several), or with the worse of two: not the lucky one.
        trials: those that were completed, and not stopped early, by their `repeat`.
        decision: what is tried.
        is_whole: whether all repeats that the search asks for were completed, and none of its
            trials was stopped early or is infeasible. Others only come after these: who leaves out
            what went badly would take a bad decision for a good one.
        scores: what to expect, one for each objective, signed such that more is better: the mean,
            shrunk (see `paxtune.objectives.shrinkage`) where the study has repeats.
    """

    trial: 'Trial'
    trials: list['Trial']
    decision: Decision
    is_whole: bool
    scores: tuple[float, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """The means of the rewards, one for each objective."""
        return _means([trial.rewards for trial in self.trials])

    @property
    def standard_errors(self) -> tuple[float | None, ...]:
        """The standard errors of these means; None where there is one trial."""
        columns = zip(*(trial.rewards for trial in self.trials), strict=True)
        return tuple(standard_error(column) for column in columns)


Scores: TypeAlias = tuple[float, ...]


def has_repeats(trials: Sequence['Trial'], wanted: int) -> bool:
    """Whether a study has repeats, or is to have some.

    Args:
        trials: all of them.
        wanted: how often its search tries each decision.
    """
    return wanted > 1 or any(trial.repeat > 1 for trial in trials)


def by_decision(trials: Sequence['Trial']) -> list[Decision]:
    """The decisions that trials tried, by the first of these.

    Args:
        trials: all of a study, by id.
    """
    labels: dict[int, int | str] = {}
    found: dict[int | str, tuple[Trial, dict[int, Trial]]] = {}
    for trial in trials:
        other = trial.retry_of or trial.repeat_of
        if other is not None:
            label = labels.get(other, other)
        else:
            label = trial.repeat_of_imported or trial.id
        if trial.is_imported and trial.repeat == 1:
            label = trial.origin  # As its repeats know it.
        labels[trial.id] = label
        _, current = found.setdefault(label, (trial, {}))
        current[trial.repeat] = trial
    return [
        Decision(first, [current[number] for number in sorted(current)])
        for first, current in found.values()
    ]


def due(
    trials: Sequence['Trial'], wanted: int, running: frozenset[int] = frozenset()
) -> 'tuple[Trial, int] | None':
    """The next repeat that a search asks for: of which trial, and its `repeat`; None without any.

    A decision gets no more repeats once one of its trials was stopped early or is infeasible. One
    that was tried in another study gets none.

    Args:
        trials: all of the study, by id.
        wanted: how often the search tries each decision.
        running: the trials that count as running, though they may have ended.
    """
    if wanted == 1:
        return None
    for decision in by_decision(trials):
        is_here = decision.trials[0].repeat == 1 and not decision.trials[0].is_imported
        goes_on = is_here and not decision.is_spoilt_without(running)
        if goes_on and (missing := decision.missing(wanted)):
            return missing[0]
    return None


def notes_of(first: 'Trial', repeat: int) -> dict[str, str]:
    """What is noted of a repeat: besides what it is, how it begins, which is as the first did."""
    notes = {'origin': ORIGIN, 'repeat_of': str(first.id), 'repeat': str(repeat)}
    known = {'parent': first.parent, 'warm_start': first.warm_start}
    return notes | {name: str(value) for name, value in known.items() if value is not None}


def ordinal(trials: Sequence['Trial'], number: int) -> int:
    """The number that a trial would have if there were no repeats before it.

    With it, algorithms draw the same for a decision however often each is tried.
    """
    return number - sum(trial.repeat > 1 for trial in trials)


def as_one(
    trials: Sequence['Trial'], past: Sequence[Observation], wanted: int
) -> Sequence[Observation]:
    """What an algorithm sees: one trial for each decision, with the mean of its scores.

    It is completed as soon as one of its trials is, those that were stopped early included, and
    pending before, until all are infeasible. Number and memo are those of the first trial.

    Args:
        trials: all of a study, by id.
        past: the same, each as an algorithm would see it alone.
        wanted: how often the search tries each decision.
    """
    if not has_repeats(trials, wanted):
        return past
    alone = {each.id: each for each in past}
    return [
        _merged(alone[decision.first.id], [alone[trial.id] for trial in decision.trials])
        for decision in by_decision(trials)
    ]


def _merged(first: Observation, trials: Sequence[Observation]) -> Observation:
    if len(trials) == 1:
        if trials[0] is first:
            return first
        return dataclasses.replace(trials[0], id=first.id, algorithm_state=first.algorithm_state)
    scores = [trial.scores for trial in trials if trial.state == 'completed']
    if scores:
        return dataclasses.replace(first, state='completed', scores=_means(scores))
    is_pending = any(trial.state == 'pending' for trial in trials)
    return dataclasses.replace(first, state='pending' if is_pending else 'infeasible', scores=())


def standings(trials: Sequence['Trial'], wanted: int) -> list[Standing]:
    """How good decisions are, best first; with several objectives by id.

    Only what was completed, and not stopped early, has a standing. Without repeats in the study
    each trial has its own.

    Args:
        trials: all of the study, by id.
        wanted: how often its search tries each decision.
    """
    if has_repeats(trials, wanted):
        decisions = by_decision(trials)
    else:
        decisions = [Decision(trial, [trial]) for trial in trials]
    counted = [(each, [t for t in each.trials if t.outcome == 'completed']) for each in decisions]
    counted = [(decision, done) for decision, done in counted if done]
    scores = _expected([[trial.scores for trial in done] for _, done in counted])
    found = [
        Standing(
            _median(done),
            done,
            decision,
            is_whole=len(done) >= wanted and not decision.is_spoilt,
            scores=expected,
        )
        for (decision, done), expected in zip(counted, scores, strict=True)
    ]
    if not found or len(found[0].scores) != 1:
        return found
    # Stable: of equal ones the first comes first.
    return sorted(found, key=lambda each: (each.is_whole, each.scores), reverse=True)


def unsettled(trials: Sequence['Trial'], wanted: int) -> list['Trial']:
    """The trials of decisions whose repeats have not all ended: any may come to stand for them."""
    found: list[Trial] = []
    if has_repeats(trials, wanted):
        for decision in by_decision(trials):
            several = wanted > 1 or len(decision.trials) > 1
            is_due = not decision.is_spoilt and decision.missing(wanted)
            if several and (is_due or not all(trial.is_terminal for trial in decision.trials)):
                found += decision.trials
    return found


def _expected(decisions: Sequence[Sequence[Scores]]) -> list[Scores]:
    """The scores to expect of each decision, of the scores of its trials."""
    if all(len(each) == 1 for each in decisions):
        return [each[0] for each in decisions]
    columns = [
        shrunk([[scores[i] for scores in each] for each in decisions])
        for i in range(len(decisions[0][0]))
    ]
    return list(zip(*columns, strict=True)) if columns else [()] * len(decisions)


def _median(trials: Sequence['Trial']) -> 'Trial':
    if len(trials) == 1:
        return trials[0]
    ordered = sorted(trials, key=lambda trial: trial.scores)
    middle = ordered[(len(ordered) - 1) // 2].scores
    return next(trial for trial in trials if trial.scores == middle)


def _means(rows: Sequence[Scores]) -> Scores:
    return tuple(mean(column) for column in zip(*rows, strict=True))
