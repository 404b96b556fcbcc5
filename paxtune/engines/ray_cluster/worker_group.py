import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from paxtune.engines.outcome import Outcome

NAMESPACE = 'paxtune'
"""Ray's namespace of coordinators."""


@dataclasses.dataclass(frozen=True)
class WorkerGroup:
    """The workers of a study: plain data.

    Attributes:
        count: the number of workers, each of which has one trial at a time, or a pack.
        processes: the number of processes of a worker, which train its trials together.
        resources: of a process, by the names of Ray: `CPU`, `GPU`, `memory`, or custom ones.
        strategy: Ray's placement strategy for the processes of a worker.
        directory: of the study, on each node.
        modules: imported by workers, as they define the classes of the experiment.
        flags: further flags of workers.
        memory_bytes: the resident memory beyond which a process is ended; None for no limit.
        max_attempts: of a trial: see `paxtune.study.transitions.lose`.
    """

    count: int
    processes: int
    resources: Mapping[str, float]
    strategy: str
    directory: str
    modules: tuple[str, ...]
    flags: tuple[str, ...]
    memory_bytes: int | None
    max_attempts: int

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Ray's resource bundles of one worker."""
        return [dict(self.resources) for _ in range(self.processes)]

    @property
    def actor_options(self) -> dict[str, Any]:
        """Ray's options of the actor of one process.

        Example:
            >>> resources = {'GPU': 1, 'fast': 1}
            >>> group = WorkerGroup(1, 1, resources, 'PACK', '/runs/a', (), (), None, 1)
            >>> group.actor_options
            {'num_cpus': 0, 'num_gpus': 1, 'resources': {'fast': 1}}
        """
        custom = dict(self.resources)
        options: dict[str, Any] = {name: custom.pop(key, 0) for name, key in _OPTIONS.items()}
        if 'memory' in custom:
            options['memory'] = custom.pop('memory')
        return {**options, 'resources': custom}

    def to_json(self) -> str:
        """Renders the group as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> 'WorkerGroup':
        """Reads what `to_json` has rendered."""
        values = json.loads(text)
        lists = {name: tuple(values[name]) for name in ('modules', 'flags')}
        return cls(**{**values, **lists})


_OPTIONS = {'num_cpus': 'CPU', 'num_gpus': 'GPU'}


class State(NamedTuple):
    """The state of the workers of a study.

    Attributes:
        running: the number of workers that have not ended.
        waiting: those among them that have waited for room on the cluster, for a while.
        error: the first one, or `Outcome(0)`.
    """

    running: int
    waiting: int
    error: Outcome
