"""Searches a slow function on the Ray cluster of `RAY_ADDRESS`.

python -m tests.paxtune.engines.ray_study DIRECTORY TRIALS WORKERS
"""

import sys

from paxtune import Ray, tune
from tests.paxtune.functions import PARALLEL, slow


def main(directory: str, trials: int, workers: int) -> None:
    engine = Ray(workers, lease_seconds=10.0)
    options = PARALLEL | {'num_trials': trials, 'job_log_dir': directory}
    with tune(slow, engine=engine, **options) as study:
        print('done:', study.done_reason)


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
