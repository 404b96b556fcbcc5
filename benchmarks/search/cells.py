"""Cells: runs of one method on one problem with one seed, kept on disk."""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.search.methods import Searcher
from benchmarks.search.problems import Instance


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        method: its name.
        problem: its name.
        seed: of the method, and of the problem's instance.
        trials: in the run.
        key: fingerprint of the versions of the method and the problem.
    """

    method: str
    problem: str
    seed: int
    trials: int
    key: str

    def path(self, folder: Path) -> Path:
        """Where it is kept."""
        return folder / self.method / self.problem / f'{self.seed}-{self.key}.json'

    def read(self, folder: Path) -> dict[str, Any] | None:
        """The stored result; None where it was not run, or not for long enough."""
        try:
            found: dict[str, Any] = json.loads(self.path(folder).read_text())
        except FileNotFoundError:
            return None
        return found if 'refused' in found or len(found['values']) >= self.trials else None

    def write(self, folder: Path, found: dict[str, Any]) -> None:
        """Keeps it, all of it or nothing."""
        path = self.path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f'.{os.getpid()}')
        partial.write_text(json.dumps(found))
        partial.replace(path)


def run(searcher: Searcher, instance: Instance, trials: int, parallel: int = 1) -> dict[str, Any]:
    """Runs a method on a problem, some trials at a time.

    Returns:
        'values', one for each trial, None where it was infeasible; 'seconds', of each suggestion.
    """
    objective = instance.start()
    values: list[float | None] = []
    seconds: list[float] = []
    while len(values) < trials:
        asked = []
        for _ in range(min(parallel, trials - len(values))):
            start = time.perf_counter()
            asked.append(searcher.ask())
            seconds.append(round(time.perf_counter() - start, 4))
        for suggested in asked:
            values.append(objective(suggested))
            searcher.tell(values[-1])
    return {'values': values, 'seconds': seconds}
