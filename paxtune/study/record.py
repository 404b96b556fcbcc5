"""Typed records of studies and trials: plain frozen data, without protocol buffers or PyGlove."""

import dataclasses
import datetime
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeAlias

from msgspec import Meta

from paxtune.objectives.measurement import Measurement
from paxtune.study.attributes import Attributes

Costs: TypeAlias = Mapping[str, Mapping[str, float]]
"""Measured costs by the name of the sub-experiment ('' without any), then by metric."""

Attempt: TypeAlias = Annotated[int, Meta(ge=1, le=10**5)]
"""The number of an attempt. Each has a directory, which may be looked for."""

MAX_SECONDS = 1e10
"""Seconds that anything takes at most, so that a sum of many is finite."""

MAX_TEXT = 100_000
"""Characters of a name, a reason or a path."""

Seconds: TypeAlias = Annotated[float, Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
Integer: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Time: TypeAlias = Annotated[datetime.datetime, Meta(tz=True)]
"""Values that all readers can compute with; `record_checks` has the narrower bounds of writers."""

INITIAL_TRIALS, SCHEDULER = 'initial_trials', 'scheduler'
"""Origins of the first trials of a search, and of trials that a scheduler forked."""

REPLICATE, RETRY = 'replicate', 'retry'
"""Origins of trials that replicate others, or run others again."""


class Status(enum.StrEnum):
    """The state of a trial.

    Attributes:
        has_ended: the state is final.
        is_open: the trial is active or paused, Vizier's ACTIVE.
    """

    COMPLETED = 'completed'
    STOPPED = 'stopped'
    INFEASIBLE = 'infeasible'
    ACTIVE = 'active'
    PAUSED = 'paused'
    REQUESTED = 'requested'

    def __init__(self, value: str) -> None:
        # Each suggestion reads these of all trials: properties would double its time.
        self.has_ended = value in ('completed', 'stopped', 'infeasible')
        self.is_open = value in ('active', 'paused')


class Measurements(Protocol):
    """An immutable sequence of measurements, as a tuple is one. A store may decode it lazily."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Measurement]: ...

    def __getitem__(self, index: slice, /) -> Sequence[Measurement]: ...

    def __add__(self, added: tuple[Measurement, ...], /) -> Any:
        """Returns the sequence with more measurements at its end."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An entry of a trial's history.

    Attributes:
        time: in UTC.
        event: its kind, such as 'claimed', 'paused' or 'ended'.
        attempt: the attempt that it is about.
        worker: the owner of the trial then; '' for none.
        detail: for people.
        step: the step that it happened at, where there is one.
    """

    time: Time
    event: str
    attempt: Integer
    worker: str = ''
    detail: str = ''
    step: Integer | None = None

    def to_json(self) -> dict[str, Any]:
        """The event as plain data, without empty fields."""
        named = {'worker': self.worker, 'step': self.step, 'detail': self.detail}
        return {
            'time': self.time.isoformat(timespec='milliseconds'),
            'event': self.event,
            'attempt': self.attempt,
            **{name: value for name, value in named.items() if value not in ('', None)},
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Lineage:
    """The relations of a trial to other trials, by their numbers.

    Attributes:
        origin: where the decisions are from: 'algorithm', 'scheduler', 'initial_trials', 'added',
            'retry', 'replicate', or `<study>#<trial>` of another study.
        parent: the trial that the algorithm derived this one from.
        retry_of: the trial that this one runs again, with the same training seeds.
        replicate: the 1-based replicate index; each replicate trains with other seeds.
        replicate_of: the trial whose decisions this one replicates; of an imported trial, its
            number in the other study.
        warm_start: the trial whose weights this one begins with.
        warm_start_step: the step of these weights, once it is known.
        forked_from: the trial and the step that a scheduler forked this one from.
        replaces: the trial whose place in a population this one took.
    """

    origin: str = 'algorithm'
    parent: Integer | None = None
    retry_of: Integer | None = None
    replicate: Integer = 1
    replicate_of: Integer | None = None
    warm_start: Integer | None = None
    warm_start_step: Integer | None = None
    forked_from: tuple[Integer, Integer] | None = None
    replaces: Integer | None = None

    @property
    def is_imported(self) -> bool:
        """Returns True if the trial ran in another study."""
        return '#' in self.origin

    @property
    def replicate_of_here(self) -> int | None:
        """The trial of this study that this one replicates."""
        return None if self.is_imported else self.replicate_of

    @property
    def replicate_of_imported(self) -> str | None:
        """The origin of the trial of another study that this imported one replicates."""
        if not self.is_imported or self.replicate_of is None:
            return None
        return f'{self.origin.rpartition("#")[0]}#{self.replicate_of}'

    @property
    def weights_from(self) -> tuple[int, int | None] | None:
        """The trial and the step that the weights come from; None for a fresh start.

        The step is None if the trial has not begun.
        """
        if self.forked_from is not None or self.warm_start is None:
            return self.forked_from
        return self.warm_start, self.warm_start_step


@dataclasses.dataclass(frozen=True, slots=True)
class Failures:
    """Losses of a trial's workers.

    Attributes:
        faults: losses that may be the trial's fault.
        losses: other losses in a row without one more step.
        furthest: the last step that any worker reached.
    """

    faults: Integer = 0
    losses: Integer = 0
    furthest: Integer = 0


@dataclasses.dataclass(frozen=True, slots=True)
class RequestIds:
    """The idempotency keys of calls that wrote a trial through a service.

    Attributes:
        added: the key of its addition; '' without a service.
        changed: the keys of its last changes.
    """

    added: str = ''
    changed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RunTime:
    """The time that a trial ran.

    Attributes:
        seconds: in all attempts.
        devices: the number of devices that the trial ran on.
    """

    seconds: Seconds = 0.0
    devices: Integer = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TrialRecord:
    """Everything that a study stores of one trial.

    Attributes:
        id: the trial's number in the study, from 1; 0 before it is added.
        parameters: the decisions, as Vizier names parameters and their values.
        status: its state.
        created: when the trial was added; None before.
        ended: when the trial ended; None before.
        measurements: in the order of reports.
        final: the final metrics and rewards of a completed or stopped trial.
        reason: why the trial ended as it did, where there is a reason.
        is_failed: whether an error made the trial infeasible.
        lineage: relations to other trials.
        holder: the worker that owns the trial; '' for none.
        attempt: the 1-based number of the current attempt. It is the fencing token: a write of an
            earlier attempt changes nothing.
        failures: losses of its workers.
        requests: the idempotency keys of calls that wrote it through a service.
        suggest_seconds: how long the algorithm took for the decisions; 0 where it made none.
        pauses: the steps at which a scheduler paused it, ascending.
        history: the last events.
        non_finite: the last step at which each metric was NaN or infinite.
        costs: costs that were measured before the first step.
        run_time: the run time of all attempts.
        profile: the wall clock of all attempts, by phase (`trainer.runtime.wall_clock`).
        memo: the state that the algorithm keeps with the trial.
        metadata: the metadata that users wrote.
        attributes: small values that programs set, by name.
    """

    parameters: Mapping[str, str | float]
    id: int = 0
    status: Status = Status.REQUESTED
    created: datetime.datetime | None = None
    ended: datetime.datetime | None = None
    measurements: Measurements = ()
    final: Measurement | None = None
    reason: str | None = None
    is_failed: bool = False
    lineage: Lineage = dataclasses.field(default_factory=Lineage)
    holder: str = ''
    attempt: Attempt = 1
    failures: Failures = dataclasses.field(default_factory=Failures)
    requests: RequestIds = dataclasses.field(default_factory=RequestIds)
    suggest_seconds: Seconds = 0.0
    pauses: tuple[Integer, ...] = ()
    history: tuple[Event, ...] = ()
    non_finite: Mapping[str, Integer] = dataclasses.field(default_factory=dict)
    costs: Costs = dataclasses.field(default_factory=dict)
    run_time: RunTime = dataclasses.field(default_factory=RunTime)
    profile: Mapping[str, Seconds] = dataclasses.field(default_factory=dict)
    memo: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    attributes: Attributes = dataclasses.field(default_factory=dict)

    @property
    def paused_at(self) -> int | None:
        """The step at which the trial is paused; None if it is not."""
        return self.pauses[-1] if self.status is Status.PAUSED else None


@dataclasses.dataclass(frozen=True, slots=True)
class PriorTrial:
    """A completed trial of another study that the algorithm may learn from.

    Attributes:
        decisions: by id, in the space of this study.
        scores: one for each objective, where more is better.
        source: names the other study.
    """

    decisions: Mapping[str, Integer | float]
    scores: tuple[float, ...]
    source: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class KnownDecision:
    """A value of a decision that was expected to be good when the study was created.

    Attributes:
        value: index of a candidate, or a number.
        deviation: as of `paxtune.algorithms.KnownValue`.
        reason: why it is expected to be good, with the source, for people.
    """

    value: Integer | float
    deviation: float
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a study, for people. Nothing depends on it.

    Attributes:
        command: the module of the command that made the study, and its flags; empty without one.
        versions: of Python and of packages, by name.
        commit: the git commit of the working directory, with `-dirty` after it where tracked files
            differ; '' outside of a repository.
    """

    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    commit: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class CodeVersion:
    """A version of the users' code, for people. No suggestion depends on it.

    Attributes:
        python: the version of Python, and the format of the hashes: others are not compared.
        hashes: hashes of classes and functions by full name (`trainer.symbolic.code_hashes`).
        since: the first trial that it may have trained.
    """

    python: str
    hashes: Mapping[str, str]
    since: Integer = 1


@dataclasses.dataclass(frozen=True)
class StudyRecord:
    """Everything that a study stores of itself.

    Attributes:
        value: JSON of the value that is searched, decisions included.
        search: JSON of the `Search`; '' if the value holds it, as a `Tunable` does.
        spec: JSON of the search space.
        data: fingerprints of the data that trials see, by input.
        priors: completed trials of other studies that the algorithm may learn from.
        algorithm: the class name of the algorithm.
        goals: 'minimize' or 'maximize' for each objective.
        exhausted: the number of trials at which the algorithm had nothing left to suggest.
        stop_requests: trials that are to stop at their next measurement.
        pause_requested: whether the whole study is to pause.
        is_ended: whether no worker gets another trial.
        metadata: the metadata that users wrote.
        exp: the `--exp` that the study came from; '' without a command.
        defaults: field defaults of the users' classes in the value, by class and field.
        uuid: identifies the study in the directories of its trials.
        notes: of people, by the number of the trial.
        provenance: how the study was made.
        note: of people, on the study itself; '' without one.
        profile: the wall clock of workers before and after their trials, by phase.
        code: versions of the users' code that the study has had, by their first trial.
        known: known values by the id of their decision; None in a study that was created before
            they were recorded.
    """

    value: str
    search: str
    spec: str
    data: Mapping[str, str]
    priors: tuple[PriorTrial, ...] = ()
    algorithm: str = ''
    goals: tuple[str, ...] = ()
    exhausted: Integer | None = None
    stop_requests: tuple[Integer, ...] = ()
    pause_requested: bool = False
    is_ended: bool = False
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exp: str = ''
    defaults: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    uuid: str = ''
    notes: Mapping[Integer, str] = dataclasses.field(default_factory=dict)
    provenance: Provenance = dataclasses.field(default_factory=Provenance)
    note: str = ''
    profile: Mapping[str, Seconds] = dataclasses.field(default_factory=dict)
    code: tuple[CodeVersion, ...] = ()
    known: Mapping[str, KnownDecision] | None = None

    @property
    def experiment(self) -> str:
        """Names the searched value: by its `--exp`, or else by its class."""
        return self.exp or json.loads(self.value).get('_type', 'Dict')

    def name(self, directory: str) -> str:
        """Names the study for people: by `--exp`, its class, or the directory of a function."""
        kind = json.loads(self.value).get('_type', '')
        is_class = kind and not kind.startswith('hyper.')
        return self.exp or (kind.rpartition('.')[2] if is_class else directory)
