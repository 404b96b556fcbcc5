"""Replicates: trials of the same decisions with other training seeds.

The trials of a configuration are the first one, its replicates, and re-runs. A re-run replaces the
trial that it repeats, once it has as good an end. Everything here is a function of recorded trials.
"""

import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import TypeAlias

from paxtune.algorithms import Observation
from paxtune.objectives import pareto
from paxtune.objectives.shrinkage import mean, shrunken_means, standard_error
from paxtune.study.record import REPLICATE, Lineage, Status
from paxtune.study.trial import Trial
from paxtune.study.trial_table import column


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Decisions that were tried, once or more often.

    Attributes:
        first: the trial that tried it first.
        trials: the counted trials, by replicate index.
    """

    first: Trial
    trials: list[Trial]

    def has_failed(self) -> bool:
        """Returns True if a trial was stopped, or is infeasible."""
        return any(trial.status in (Status.STOPPED, Status.INFEASIBLE) for trial in self.trials)

    def missing(self, wanted: int) -> list[tuple[Trial, int]]:
        """Lists the replicates that are missing, as (first trial, replicate index)."""
        known = {trial.lineage.replicate for trial in self.trials}
        first = self.trials[0]
        return [(first, number) for number in range(2, wanted + 1) if number not in known]


@dataclasses.dataclass(frozen=True)
class LeaderboardEntry:
    """The rank of a configuration, by its trials.

    Attributes:
        trial: its representative: the trial with the median reward of the first objective, or the
            worse of two. It is not the lucky one.
        trials: completed trials (not stopped early), by replicate index.
        configuration: the decisions.
        is_complete: whether all replicates that the search asks for were completed. Other
            configurations come after these: to ignore failures would favor bad configurations.
        scores: the expected scores, one for each objective, where more is better: the mean, shrunk
            (see `paxtune.objectives.shrinkage`) where the study has replicates.
    """

    trial: Trial
    trials: list[Trial]
    configuration: Configuration
    is_complete: bool
    scores: tuple[float, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Mean rewards, one for each objective."""
        return _means([trial.rewards for trial in self.trials])

    @property
    def standard_errors(self) -> tuple[float | None, ...]:
        """The standard errors of these means; None if there is one trial."""
        columns = zip(*(trial.rewards for trial in self.trials), strict=True)
        return tuple(standard_error(column) for column in columns)


Scores: TypeAlias = tuple[float, ...]


def has_replicates(trials: Sequence[Trial], wanted: int) -> bool:
    """Returns True if a study has replicates, or wants several trials of each configuration."""
    return wanted > 1 or any(column(trials, _is_replicate))


def _is_replicate(trial: Trial) -> bool:
    return trial.lineage.replicate > 1


def is_plain(trials: Sequence[Trial], wanted: int) -> bool:
    """Returns True if each completed trial has an entry of its own, and one score."""
    return not has_replicates(trials, wanted) and math.inf not in column(trials, _score)


def _score(trial: Trial) -> float:
    """Returns the score of a completed trial; infinity for several scores, or none."""
    if trial.status is not Status.COMPLETED:
        return -math.inf
    return trial.scores[0] if len(trial.scores) == 1 else math.inf


def configurations(trials: Sequence[Trial]) -> list[Configuration]:
    """Groups all trials of a study, by id, by their decisions, in the order of the first ones."""
    labels: dict[int, int | str] = {}
    found: dict[int | str, tuple[Trial, dict[int, Trial]]] = {}
    for trial in trials:
        lineage = trial.lineage
        other = lineage.retry_of or lineage.replicate_of_here
        if other is not None:
            label = labels.get(other, other)
        else:
            label = lineage.replicate_of_imported or trial.id
        if lineage.is_imported and lineage.replicate == 1:
            label = lineage.origin  # As its replicates know it.
        labels[trial.id] = label
        _, current = found.setdefault(label, (trial, {}))
        repeated = current.get(lineage.replicate)
        if repeated is None or _worth(trial) >= _worth(repeated):
            current[lineage.replicate] = trial
    return [
        Configuration(first, [current[number] for number in sorted(current)])
        for first, current in found.values()
    ]


def _worth(trial: Trial) -> int:
    """Ranks the result of a trial, so that a re-run without one hides no trial that has one."""
    return {Status.COMPLETED: 2, Status.STOPPED: 1}.get(trial.status, 0)


def due(trials: Sequence[Trial], wanted: int) -> tuple[Trial, int] | None:
    """Finds the next replicate that a search asks for, as (first trial, replicate index).

    A configuration gets no more replicates once one of its trials was stopped early or is
    infeasible. One that was tried in another study gets none.

    Args:
        trials: all of the study, by id.
        wanted: the number of trials of each configuration.

    Returns:
        None if no replicate is missing.
    """
    if wanted == 1:
        return None
    for each in configurations(trials):
        lineage = each.trials[0].lineage
        is_here = lineage.replicate == 1 and not lineage.is_imported
        if is_here and not each.has_failed() and (missing := each.missing(wanted)):
            return missing[0]
    return None


def lineage_of(first: Trial, replicate: int) -> Lineage:
    """Describes a replicate. It begins as the first trial did."""
    return Lineage(
        origin=REPLICATE,
        replicate_of=first.id,
        replicate=replicate,
        parent=first.lineage.parent,
        warm_start=first.lineage.warm_start,
    )


def ordinal(trials: Sequence[Trial], number: int) -> int:
    """Computes the number that a trial would have if there were no replicates before it.

    With it, algorithms draw the same decisions for any number of replicates.
    """
    return number - sum(column(trials, _is_replicate))


def merged(
    trials: Sequence[Trial], observations: Sequence[Observation], wanted: int
) -> Sequence[Observation]:
    """Merges the observations of each configuration into one, with the mean of its scores.

    It is completed as soon as one trial is, including those that were stopped early. It is pending
    before, until all trials are infeasible. Number and state are those of the first trial.

    Args:
        trials: all of a study, by id.
        wanted: the number of trials of each configuration that the search asks for.
    """
    if not has_replicates(trials, wanted):
        return observations
    alone = {each.id: each for each in observations}
    return [
        _merged(alone[each.first.id], [alone[trial.id] for trial in each.trials])
        for each in configurations(trials)
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


def leaderboard(trials: Sequence[Trial], wanted: int) -> list[LeaderboardEntry]:
    """Ranks configurations, best first; with several objectives by id.

    Only completed trials that were not stopped early count. Without replicates in the study each
    trial has its own entry.

    Args:
        trials: all of the study, by id.
        wanted: the number of trials of each configuration that the search asks for.
    """
    if has_replicates(trials, wanted):
        found = configurations(trials)
    else:
        found = [Configuration(trial, [trial]) for trial in trials]
    counted = [(each, [t for t in each.trials if t.status is Status.COMPLETED]) for each in found]
    counted = [(each, done) for each, done in counted if done]
    scores = _expected([[trial.scores for trial in done] for _, done in counted])
    entries = [
        LeaderboardEntry(
            _median(done),
            done,
            each,
            is_complete=len(done) >= wanted and not each.has_failed(),
            scores=expected,
        )
        for (each, done), expected in zip(counted, scores, strict=True)
    ]
    if not entries or len(entries[0].scores) != 1:
        return entries
    # Stable: of equal ones the first comes first.
    return sorted(entries, key=lambda each: (each.is_complete, each.scores), reverse=True)


def top(trials: Sequence[Trial], wanted: int, count: int) -> list[LeaderboardEntry]:
    """Returns the first entries of `leaderboard`. Of many plain trials, it makes only these."""
    if count >= len(trials) or not is_plain(trials, wanted):
        return leaderboard(trials, wanted)[:count]
    scores = column(trials, _score)
    places = heapq.nlargest(count, range(len(scores)), key=scores.__getitem__)
    found = [trials[place] for place in places if scores[place] > -math.inf]
    return [LeaderboardEntry(t, [t], Configuration(t, [t]), True, t.scores) for t in found]


def complete(entries: Sequence[LeaderboardEntry]) -> Sequence[LeaderboardEntry]:
    """Returns the entries with all replicates, or all of them where there is none.

    One that lacks replicates may only have been lucky.
    """
    return [each for each in entries if each.is_complete] or entries


def front(entries: Sequence[LeaderboardEntry]) -> list[LeaderboardEntry]:
    """Returns the entries that no other one beats in all objectives, in their order."""
    found = complete(entries)
    return [found[index] for index in pareto.front([each.scores for each in found])]


def pending(trials: Sequence[Trial], wanted: int) -> list[Trial]:
    """Lists the trials of configurations whose replicates have not all ended.

    Any of them may become the representative of its configuration.
    """
    found: list[Trial] = []
    if has_replicates(trials, wanted):
        for each in configurations(trials):
            several = wanted > 1 or len(each.trials) > 1
            is_due = not each.has_failed() and each.missing(wanted)
            if several and (is_due or not all(trial.is_terminal for trial in each.trials)):
                found += each.trials
    return found


def _expected(decisions: Sequence[Sequence[Scores]]) -> list[Scores]:
    """Estimates the scores of each configuration from its trials."""
    if all(len(each) == 1 for each in decisions):
        return [each[0] for each in decisions]
    columns = [
        shrunken_means([[scores[i] for scores in each] for each in decisions])
        for i in range(len(decisions[0][0]))
    ]
    return list(zip(*columns, strict=True)) if columns else [()] * len(decisions)


def _median(trials: Sequence[Trial]) -> Trial:
    if len(trials) == 1:
        return trials[0]
    ordered = sorted(trials, key=lambda trial: trial.scores)
    middle = ordered[(len(ordered) - 1) // 2].scores
    return next(trial for trial in trials if trial.scores == middle)


def _means(rows: Sequence[Scores]) -> Scores:
    return tuple(mean(column) for column in zip(*rows, strict=True))
