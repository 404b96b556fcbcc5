"""Searches a slow function on the Ray cluster of `RAY_ADDRESS`, and what tests ask of it.

python -m tests.factories.ray_searches DIRECTORY TRIALS WORKERS [CPUS]
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from paxtune import Ray, tune
from paxtune.storage.open_study import load_study
from paxtune.study.trial import Trial
from tests.factories.function_studies import PARALLEL, slow
from tools.servers.ray_cluster import RayCluster
from trainer.symbolic.errors import UserError

STUDY = 'tests.factories.ray_searches'

_REMAINS = """
import sys
import time
from pathlib import Path

import ray
from ray.util import placement_group_table

ray.init(logging_level='WARNING')
from ray._private import state, worker

last = time.monotonic() + 240
while True:
    actors = [each for each in state.actors().values() if each['State'] != 'DEAD']
    groups = [each for each in placement_group_table().values() if each['state'] != 'REMOVED']
    if not actors and not groups:
        break
    assert time.monotonic() < last, (actors, groups)
    time.sleep(0.5)
token = Path(sys.argv[1], 'service', 'token').read_bytes().strip()
assert len(token) > 16 and token not in repr(state.actors()).encode()
logs = Path(worker._global_node.get_session_dir_path(), 'logs')
found = [file for file in logs.rglob('*') if file.is_file() and token in file.read_bytes()]
assert not found, found
print('nothing remains')
"""


def ended(directory: Path) -> list[Trial]:
    """The trials that have ended; none before there is a study."""
    with contextlib.suppress(UserError), load_study(directory) as study:
        return [trial for trial in study.trials if trial.is_terminal]
    return []


def until(is_so: Callable[[], object], seconds: float = 1700.0) -> None:
    last = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < last, 'it takes too long'
        time.sleep(0.5)


def finished(driver: 'subprocess.Popen[str]') -> str:
    output, _ = driver.communicate(timeout=900)
    assert driver.returncode == 0, output
    return output


def rewards(trials: list[Trial]) -> list[tuple[int, float | None]]:
    return [(trial.id, trial.reward) for trial in trials]


def nothing_remains(cluster: RayCluster, directory: Path) -> None:
    """Waits until no actor is left, and looks for the token of the study in Ray's records."""
    assert 'nothing remains' in finished(cluster.python('-c', _REMAINS, str(directory)))


def main(directory: str, trials: int, workers: int, cpus: int = 1) -> None:
    engine = Ray(workers, trial_resources={'CPU': cpus}, lease_seconds=10.0)
    options = PARALLEL | {'num_trials': trials, 'job_log_dir': directory}
    with tune(slow, engine=engine, **options) as study:
        print('done:', study.done_reason)


if __name__ == '__main__':
    main(sys.argv[1], *map(int, sys.argv[2:]))
