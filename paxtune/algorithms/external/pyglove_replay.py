"""The state of a PyGlove algorithm, made of what is noted with the trials that it proposed."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyglove as pg

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.search_space.decisions import Decisions, from_dna, to_dna

TOLD, PROPOSALS, METADATA, RECOVERED = 'told', 'proposals', 'metadata', 'recovered'
"""Notes of a trial: the trials that the generator was told of just before; how often it was asked
then; the metadata of its proposal, unless the trial was drawn at random in the end; and whether its
state could not be repeated."""

_SCALARS = (bool, int, float, str, type(None))


class Unrepeatable(Exception):
    """What happened cannot be repeated: trials are gone, or something else is proposed now."""


@dataclasses.dataclass(frozen=True)
class Tell:
    """The generator is told of a trial.

    Attributes:
        id: of the trial.
        decisions: its decisions.
        scores: its rewards.
    """

    id: int
    decisions: Decisions
    scores: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Ask:
    """The generator is asked for a trial.

    Attributes:
        id: of the trial.
        decisions: its decisions.
        count: how often it is asked.
        is_proposal: whether the trial is the last proposal; else it was drawn at random.
    """

    id: int
    decisions: Decisions
    count: int
    is_proposal: bool


Step: TypeAlias = Tell | Ask


def steps_of(observations: Sequence[Observation]) -> list[Step]:
    """What to tell and to ask a new generator, to bring it to where it is after a history.

    Raises:
        Unrepeatable: a trial that it was told of is gone, or a trial says that it is so.
    """
    completed = {trial.id: trial for trial in observations if trial.scores}
    untold, steps = dict(completed), list[Step]()
    for id_ in [id_ for id_ in completed if id_ <= 0]:  # Of earlier studies: known at the start.
        steps.append(_tell(untold.pop(id_)))
    for trial in observations:
        if PROPOSALS not in trial.algorithm_state or trial.id <= 0:
            continue
        if RECOVERED in trial.algorithm_state:
            raise Unrepeatable
        for id_ in map(int, trial.algorithm_state.get(TOLD, '').split()):
            if id_ not in untold:
                raise Unrepeatable
            steps.append(_tell(untold.pop(id_)))
        count = int(trial.algorithm_state[PROPOSALS])
        steps.append(Ask(trial.id, trial.decisions, count, METADATA in trial.algorithm_state))
    return steps + [_tell(trial) for trial in untold.values()]


def _tell(trial: Observation) -> Tell:
    return Tell(trial.id, trial.decisions, trial.scores)


def memo_of(
    told: Sequence[int], count: int, dna: pg.DNA | None, is_recovered: bool
) -> Mapping[str, str]:
    """The notes of a trial.

    Args:
        told: the trials that the generator was told of since it was asked before.
        count: how often it was asked now.
        dna: its proposal; None where the trial was drawn at random.
        is_recovered: whether its state could not be repeated.
    """
    algorithm_state = {TOLD: ' '.join(map(str, told)), PROPOSALS: str(count)}
    if dna is not None:
        algorithm_state[METADATA] = json.dumps(_scalars(dict(dna.metadata.sym_items())))
    return algorithm_state | {RECOVERED: 'true'} if is_recovered else algorithm_state


def _scalars(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What may be stored, and be read back as what it was, without running anything."""
    return {str(name): value for name, value in metadata.items() if type(value) in _SCALARS}


class Replay:
    """A generator, and what it was told and asked so far.

    Its state is a function of these steps, since its random numbers are its own. So one that has
    taken the first of some steps goes on with the others, as a new one would with all of them.
    """

    def __init__(self, generator: pg.DNAGenerator, spec: pg.DNASpec) -> None:
        """Sets the generator up."""
        generator.setup(spec)
        self.is_recovered = False
        self._generator, self._spec = generator, spec
        self._steps: list[Step] = []
        self._dnas: dict[int, pg.DNA] = {}

    def leads_to(self, spec: pg.DNASpec, steps: Sequence[Step]) -> bool:
        """Whether `steps` begin with those that were taken."""
        return self._spec is spec and list(steps[: len(self._steps)]) == self._steps

    def go(self, steps: Sequence[Step]) -> None:
        """Takes the steps that follow those that were taken.

        Raises:
            Unrepeatable: something else is proposed now.
        """
        for step in steps[len(self._steps) :]:
            if isinstance(step, Tell):
                self.tell(step)
            else:
                self._repeat(step)

    def tell(self, step: Tell) -> None:
        """Tells the generator of a trial."""
        dna = self._dnas.pop(step.id, None)
        if dna is None:
            dna = _foreign(self._generator, self._spec, step)
        self._generator.feedback(dna, _reward(self._generator, step.scores))
        self._steps.append(step)

    def _repeat(self, step: Ask) -> None:
        dna = None
        for _ in range(step.count):
            try:
                dna = self.propose()
            except StopIteration:
                raise Unrepeatable from None
        if step.is_proposal:
            if dna is None or from_dna(self._spec, dna) != step.decisions:
                raise Unrepeatable
            self._dnas[step.id] = dna
        self._steps.append(step)

    def propose(self) -> pg.DNA | None:
        """What the generator proposes; None where it can tell nothing from rewards as they are.

        Raises:
            StopIteration: it has nothing more to propose.
        """
        try:
            dna = self._generator.propose()
        except ArithmeticError:
            return None  # `neat` divides by zero while all rewards are equal.
        if dna.spec is None:
            dna.use_spec(self._spec)
        return dna

    @property
    def told_last(self) -> list[int]:
        """The trials that the generator was told of since it was asked, but for earlier studies."""
        found: list[int] = []
        for step in reversed(self._steps):
            if isinstance(step, Ask):
                break
            if step.id > 0:
                found.append(step.id)
        return found[::-1]

    def note(
        self,
        number: int,
        decisions: Decisions,
        algorithm_state: Mapping[str, str],
        dna: pg.DNA | None,
    ) -> None:
        """Notes that the generator was asked, with what came of it."""
        self._steps.append(Ask(number, decisions, int(algorithm_state[PROPOSALS]), dna is not None))
        if dna is not None:
            self._dnas[number] = dna


def recovered(generator: pg.DNAGenerator, context: SuggestionContext) -> Replay:
    """A generator that was shown all trials, in PyGlove's way for what cannot be repeated."""
    replay = Replay(generator, context.spec)
    replay.is_recovered = True
    shown = []
    for trial in context.observations:
        reward = _reward(generator, trial.scores) if trial.scores else None
        if METADATA in trial.algorithm_state and trial.id > 0:
            dna = to_dna(context.spec, trial.decisions)
            for name, value in _scalars(json.loads(trial.algorithm_state[METADATA])).items():
                dna.set_metadata(name, value)
            shown.append((dna, reward))
        elif reward is not None:
            step = _tell(trial)
            shown.append((_foreign(generator, context.spec, step), reward))
    generator.recover(shown)
    return replay


def _reward(generator: pg.DNAGenerator, scores: tuple[float, ...]) -> float | tuple[float, ...]:
    """Scores as a generator wants them."""
    rewards = tuple(map(float, scores))
    return rewards if generator.multi_objective else rewards[0]


def _foreign(generator: pg.DNAGenerator, spec: pg.DNASpec, step: Tell) -> pg.DNA:
    """The DNA of a trial that the generator has not proposed."""
    dna = to_dna(spec, step.decisions)
    if isinstance(generator, pg.evolution.Evolution):
        # What it notes of its own: this is one of the first population.
        for name, value in (
            ('proposal_id', 0), ('generation_id', 1), ('initial_population', True),
        ):  # fmt: skip
            dna.set_metadata(name, value)
    return dna
