"""Overhead per trial of each engine, beside Ray Tune with the same function on the same cluster.

    python benchmarks/engines.py --check

Trials of a function that sleeps, with four measurements each, run two at a time (one in process).
Overhead is the wall clock of a call, times the trials at a time, less the time that trials sleep,
per trial. It includes the start of workers. It excludes the start of the Ray cluster, which is
local and warm, and of the SLURM cluster. Ray Tune has its default settings, and draws random values
as we do.

Goal: each engine has at most half of Ray Tune's overhead. `--quick` runs fewer trials, which the
start of workers outweighs. `--check` exits with 1 where the goal is missed.
"""

import argparse
import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.sleeping import SECONDS, STEPS, sleeping
from tools.servers import ray_cluster

GOAL = 0.5
AT_A_TIME = 2


def ours(engine: Any, trials: int) -> None:
    """Runs trials with one of our engines."""
    import pyglove as pg

    import paxtune

    with tempfile.TemporaryDirectory() as directory:
        study = paxtune.tune(
            sleeping,
            space={'x': pg.floatv(0.0, 1.0)},
            objective='minimize',
            algorithm='random_search',
            num_trials=trials,
            job_log_dir=directory,
            engine=engine,
        )
        with study:
            assert len(study.trials) == trials


def ray_tune(trials: int) -> None:
    """Runs trials with Ray Tune."""
    from ray import tune

    def train(config: dict[str, float]) -> None:
        for metrics in sleeping(**config):
            tune.report(metrics)

    with tempfile.TemporaryDirectory() as directory:
        tuner = tune.Tuner(
            tune.with_resources(train, {'cpu': 1}),
            param_space={'x': tune.uniform(0.0, 1.0)},
            tune_config=tune.TuneConfig(
                metric='objective',
                mode='min',
                num_samples=trials,
                max_concurrent_trials=AT_A_TIME,
            ),
            run_config=tune.RunConfig(storage_path=directory, verbose=0),
        )
        assert len(tuner.fit()) == trials


@contextlib.contextmanager
def local_cluster() -> Iterator[None]:
    """Runs a Ray cluster of one node, which this process uses."""
    with ray_cluster.started(1, AT_A_TIME) as cluster:
        os.environ.update(cluster.environment, RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS='0')

        import ray

        ray.init(cluster.address, logging_level='WARNING', log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def slurm() -> Iterator[Any]:
    """Runs a SLURM cluster, and yields its engine; None where its daemons are not installed."""
    from paxtune.engines.slurm_cluster.engine import Slurm
    from tools.servers import slurm as daemons

    if not all(shutil.which(each, path=daemons.PATH) for each in daemons.DAEMONS):
        print('without SLURM: apt-get install slurmctld slurmd munge')
        yield None
        return
    with tempfile.TemporaryDirectory() as home, daemons.cluster(Path(home)) as environment:
        os.environ.update(environment)
        yield Slurm(AT_A_TIME, options={'time': '00:30:00'})


def overhead(run: Callable[[int], None], trials: int, at_a_time: int) -> float:
    """Seconds per trial, beyond what trials sleep."""
    began = time.monotonic()
    run(trials)
    return (time.monotonic() - began) * at_a_time / trials - SECONDS * STEPS


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    trials = 8 if args.quick else 64

    from paxtune import InProcess, Ray, Workers

    two = functools.partial(overhead, trials=trials, at_a_time=AT_A_TIME)
    found = {}
    with local_cluster():
        found['ray_tune'] = two(ray_tune)
        found['ray'] = two(lambda count: ours(Ray(AT_A_TIME), count))
    with slurm() as engine:
        if engine is not None:
            found['slurm'] = two(lambda count: ours(engine, count))
    found['workers'] = two(lambda count: ours(Workers(AT_A_TIME), count))
    found['in_process'] = overhead(lambda count: ours(InProcess(), count), trials, 1)
    for name, value in found.items():
        share = value / found['ray_tune']
        print(f'{name:12} {value:7.3f} s per trial {share:7.2f} of Ray Tune')
    print('RESULT ' + json.dumps({name: round(value, 4) for name, value in found.items()}))
    is_met = all(
        value <= GOAL * found['ray_tune'] for name, value in found.items() if name != 'ray_tune'
    )
    return int(args.check and not is_met)


if __name__ == '__main__':
    sys.exit(main())
