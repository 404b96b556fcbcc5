import collections
import dataclasses
from collections.abc import Mapping, Sequence

import pyglove as pg

from paxtune.pyglove_backend.views import DNA_METADATA, View
from paxtune.search_space.decisions import Decisions, from_dna
from paxtune.study.record import TrialRecord
from paxtune.study.study import Study
from paxtune.study.trial import Trial

FED_BACK = 'fed_back'
"""The memo item of a trial's feedback: after which trial it was given, and its number."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A trial that an algorithm has proposed.

    Attributes:
        decisions: of the proposal.
        rewards: the rewards that the algorithm observed; None without any.
        fed_back: the trial before this observation, and the position in a row.
    """

    id: int
    record: TrialRecord
    decisions: Decisions
    rewards: tuple[float, ...] | None
    fed_back: tuple[int, int]

    @property
    def reward(self) -> float | tuple[float, ...] | None:
        """The rewards in PyGlove's form."""
        return None if self.rewards is None else to_reward(self.rewards)


def to_reward(rewards: tuple[float, ...]) -> float | tuple[float, ...]:
    """Rewards in PyGlove's form for an algorithm: a number where there is one."""
    return rewards[0] if len(rewards) == 1 else rewards


def proposals(study: Study) -> list[Proposal]:
    """The trials of a study that an algorithm has proposed, by id.

    Trials that a user added to the study are not among them.
    """
    found = []
    for record in study.store.trials():
        if DNA_METADATA not in record.memo:
            continue
        trial = Trial(record, study.context)
        # The item is written before the end, which a kill may prevent.
        fed_back = record.memo.get(FED_BACK) if trial.rewards else None
        after, number = map(int, (fed_back or '0 0').split())
        rewards = trial.rewards if fed_back else None
        found.append(Proposal(trial.id, record, trial.by_id, rewards, (after, number)))
    return found


def replay(
    algorithm: pg.DNAGenerator, past: Sequence[Proposal], view: View
) -> Mapping[int, pg.DNA]:
    """Brings an algorithm to where it would be, had it proposed the trials of a study just now.

    It makes the same proposals again, and observes the same rewards, in the order in which all
    that happened. So an algorithm goes on exactly as it would have, its random numbers included,
    where these are its own (a seed is given wherever there may be one). One that proposes
    something else now recovers in PyGlove's way: its `recover` is shown all trials.

    Returns:
        The DNA of each trial, by id.
    """
    again = _repeat(algorithm, past, view)
    if again is None:
        again = {each.id: view.dna(each.record) for each in past}
        algorithm.setup(view.spec)
        algorithm.recover([(again[each.id], each.reward) for each in past])
    return again


def _repeat(
    algorithm: pg.DNAGenerator, past: Sequence[Proposal], view: View
) -> dict[int, pg.DNA] | None:
    algorithm.setup(view.spec)
    observed = [each for each in past if each.rewards is not None]
    unobserved = collections.deque(sorted(observed, key=lambda each: each.fed_back))
    again: dict[int, pg.DNA] = {}
    for each in past:
        while unobserved and unobserved[0].fed_back[0] < each.id:
            earlier = unobserved.popleft()
            algorithm.feedback(again[earlier.id], earlier.reward)
        try:
            dna = algorithm.propose()
        except StopIteration:
            return None
        if dna.spec is None:
            dna.use_spec(view.spec)
        if from_dna(view.study.space.spec, dna) != each.decisions:
            return None
        again[each.id] = dna
    for each in unobserved:
        algorithm.feedback(again[each.id], each.reward)
    return again
