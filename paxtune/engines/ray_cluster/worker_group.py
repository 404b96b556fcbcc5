import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from paxtune.engines.cluster_worker import ClusterWorker, Outcome

NAMESPACE = 'paxtune'
"""Ray's namespace of coordinators."""


@dataclasses.dataclass(frozen=True)
class WorkerGroup:
    """The workers of a study on Ray: plain data.

    Attributes:
        count: the number of workers, each of which has one trial at a time, or a pack.
        worker: the configuration of each.
        resources: of a process, by the names of Ray: `CPU`, `GPU`, `memory`, or custom ones.
        strategy: Ray's placement strategy for the processes of a worker.
    """

    count: int
    worker: ClusterWorker
    resources: Mapping[str, float]
    strategy: str

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Ray's resource bundles of one worker."""
        return [dict(self.resources) for _ in range(self.worker.processes)]

    @property
    def actor_options(self) -> dict[str, Any]:
        """Ray's options of the actor of one process.

        Example:
            >>> worker = ClusterWorker('/runs/a', (), (), None, 1)
            >>> WorkerGroup(1, worker, {'GPU': 1, 'fast': 1}, 'PACK').actor_options
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
        """Reads the text of `to_json`."""
        values = json.loads(text)
        worker = values['worker']
        lists = {name: tuple(worker[name]) for name in ('modules', 'flags')}
        return cls(**{**values, 'worker': ClusterWorker(**{**worker, **lists})})


_OPTIONS = {'num_cpus': 'CPU', 'num_gpus': 'GPU'}


class State(NamedTuple):
    """The state of the workers of a study.

    Attributes:
        is_running: True until all workers have ended.
        waiting: the number of workers that have waited for room on the cluster, for a while.
        end: the error of a worker, or `Outcome(0)`.
    """

    is_running: bool
    waiting: int
    end: Outcome
