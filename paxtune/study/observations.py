"""Observations: trials as algorithms see them."""

from paxtune.algorithms import Observation
from paxtune.study.record import Status
from paxtune.study.trial import Trial


def observe(trial: Trial) -> Observation:
    """Observes a trial as it stands. A paused one counts with its reward so far."""
    memo = dict(trial.record.memo)
    if trial.status in (Status.COMPLETED, Status.STOPPED):
        return Observation(trial.id, trial.by_id, 'completed', trial.scores, memo)
    if trial.status is Status.INFEASIBLE:
        return Observation(trial.id, trial.by_id, 'infeasible', algorithm_state=memo)
    paused_at = trial.record.paused_at
    if paused_at is not None and (scores := trial.scores_at(paused_at)):
        return Observation(trial.id, trial.by_id, 'completed', scores, memo)
    return Observation(trial.id, trial.by_id, 'pending', algorithm_state=memo)
