"""State of a PyGlove algorithm, replayed from the algorithm state of its trials."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyglove as pg

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.search_space.decisions import Decisions, from_dna, to_dna

REPORTED, PROPOSALS, METADATA, RECOVERED = 'reported', 'proposals', 'metadata', 'recovered'
"""Keys of the algorithm state.

- `REPORTED`: trials that were fed back since the previous proposal.
- `PROPOSALS`: number of proposals for this trial.
- `METADATA`: metadata of the last proposal, unless the trial was drawn at random.
- `RECOVERED`: mark of trials after a recovery.
"""

_SCALARS = (bool, int, float, str, type(None))


class Unrepeatable(Exception):
    """The events cannot be replayed: trials are missing, or a proposal differs."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The generator proposes a trial.

    Attributes:
        id: number of the trial.
        decisions: decisions of the trial.
        count: number of proposals for it.
        is_proposal: True if the trial is the last proposal; False if it was drawn at random.
    """

    id: int
    decisions: Decisions
    count: int
    is_proposal: bool


Event: TypeAlias = Observation | Proposal
"""A completed trial whose scores the generator gets, or a proposal."""


def event_log(observations: Sequence[Observation]) -> list[Event]:
    """Events that bring a new generator to its state after the observations.

    Raises:
        Unrepeatable: a trial that was fed back is missing, or a recovery was recorded.
    """
    completed = {trial.id: trial for trial in observations if trial.scores}
    unreported, events = dict(completed), list[Event]()
    for id_ in [id_ for id_ in completed if id_ <= 0]:  # Earlier studies are fed back at the start.
        events.append(unreported.pop(id_))
    for trial in observations:
        if PROPOSALS not in trial.algorithm_state or trial.id <= 0:
            continue
        if RECOVERED in trial.algorithm_state:
            raise Unrepeatable
        for id_ in map(int, trial.algorithm_state.get(REPORTED, '').split()):
            if id_ not in unreported:
                raise Unrepeatable
            events.append(unreported.pop(id_))
        count = int(trial.algorithm_state[PROPOSALS])
        events.append(Proposal(trial.id, trial.decisions, count, METADATA in trial.algorithm_state))
    return [*events, *unreported.values()]


def proposal_state(
    reported: Sequence[int], count: int, dna: pg.DNA | None, is_recovered: bool
) -> Mapping[str, str]:
    """Algorithm state of a proposed trial.

    Args:
        reported: trials that were fed back since the previous proposal.
        count: number of proposals for this trial.
        dna: last proposal; None if the trial was drawn at random.
        is_recovered: True after a recovery.
    """
    state = {REPORTED: ' '.join(map(str, reported)), PROPOSALS: str(count)}
    if dna is not None:
        state[METADATA] = json.dumps(_scalars(dict(dna.metadata.sym_items())))
    return state | {RECOVERED: 'true'} if is_recovered else state


def _scalars(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Items of the metadata that JSON restores without running code."""
    return {str(name): value for name, value in metadata.items() if type(value) in _SCALARS}


class Replay:
    """Generator with its events so far.

    Its state is a function of the events, because its random numbers are its own. A generator that
    has taken the first events can therefore continue with the others.
    """

    def __init__(self, generator: pg.DNAGenerator, spec: pg.DNASpec) -> None:
        generator.setup(spec)
        self.is_recovered = False
        self._generator, self._spec = generator, spec
        self._events: list[Event] = []
        self._dnas: dict[int, pg.DNA] = {}

    def is_prefix(self, spec: pg.DNASpec, events: Sequence[Event]) -> bool:
        """Returns True if `events` begin with the events so far."""
        return self._spec is spec and list(events[: len(self._events)]) == self._events

    def apply(self, events: Sequence[Event]) -> None:
        """Applies later events; raises Unrepeatable if a proposal differs from the recorded one."""
        for event in events[len(self._events) :]:
            if isinstance(event, Proposal):
                self._repeat(event)
            else:
                self._feed_back(event)
            self._events.append(event)

    def _feed_back(self, trial: Observation) -> None:
        dna = self._dnas.pop(trial.id, None)
        if dna is None:
            dna = _foreign_dna(self._generator, self._spec, trial.decisions)
        self._generator.feedback(dna, _reward(self._generator, trial.scores))

    def _repeat(self, event: Proposal) -> None:
        dna = None
        for _ in range(event.count):
            try:
                dna = self.propose()
            except StopIteration:
                raise Unrepeatable from None
        if event.is_proposal:
            if dna is None or from_dna(self._spec, dna) != event.decisions:
                raise Unrepeatable
            self._dnas[event.id] = dna

    def propose(self) -> pg.DNA | None:
        """Returns the next proposal, or None if the generator cannot handle the rewards.

        Raises:
            StopIteration: the generator is exhausted.
        """
        try:
            dna = self._generator.propose()
        except ArithmeticError:
            return None  # `neat` divides by zero while all rewards are equal.
        if dna.spec is None:
            dna.use_spec(self._spec)
        return dna

    @property
    def reported(self) -> list[int]:
        """Trials of this study that were fed back since the last proposal."""
        found: list[int] = []
        for event in reversed(self._events):
            if isinstance(event, Proposal):
                break
            if event.id > 0:
                found.append(event.id)
        return found[::-1]

    def record(
        self, number: int, decisions: Decisions, state: Mapping[str, str], dna: pg.DNA | None
    ) -> None:
        """Records a proposal and the trial that resulted."""
        self._events.append(Proposal(number, decisions, int(state[PROPOSALS]), dna is not None))
        if dna is not None:
            self._dnas[number] = dna


def recover(generator: pg.DNAGenerator, context: SuggestionContext) -> Replay:
    """Replay of a generator that has recovered all trials by `pg.DNAGenerator.recover`."""
    replay = Replay(generator, context.spec)
    replay.is_recovered = True
    recorded = []
    for trial in context.observations:
        reward = _reward(generator, trial.scores) if trial.scores else None
        if METADATA in trial.algorithm_state and trial.id > 0:
            dna = to_dna(context.spec, trial.decisions)
            for name, value in _scalars(json.loads(trial.algorithm_state[METADATA])).items():
                dna.set_metadata(name, value)
            recorded.append((dna, reward))
        elif reward is not None:
            dna = _foreign_dna(generator, context.spec, trial.decisions)
            recorded.append((dna, reward))
    generator.recover(recorded)
    return replay


def _reward(generator: pg.DNAGenerator, scores: tuple[float, ...]) -> float | tuple[float, ...]:
    rewards = tuple(map(float, scores))
    return rewards if generator.multi_objective else rewards[0]


def _foreign_dna(generator: pg.DNAGenerator, spec: pg.DNASpec, decisions: Decisions) -> pg.DNA:
    """DNA of a trial that the generator did not propose."""
    dna = to_dna(spec, decisions)
    if isinstance(generator, pg.evolution.Evolution):
        # As it marks its own: a member of the first population.
        dna.set_metadata('proposal_id', 0)
        dna.set_metadata('generation_id', 1)
        dna.set_metadata('initial_population', True)
    return dna
