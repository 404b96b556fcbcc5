"""A stock Vizier client beside two servers, and Vizier's own server: a process of each.

    python -I benchmarks/load/stock_vizier.py serve
    python -I benchmarks/load/stock_vizier.py run ALGORITHM TRIALS ENDPOINT ENDPOINT

It imports google-vizier and nothing of paxtune. `serve` prints its endpoint. `run` asks the
endpoints in turn, and prints the seconds of each round of suggestions as a line of JSON.
"""

import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any


def serve() -> None:
    """Serves studies in memory until the process is killed."""
    from vizier.service import servers

    server = servers.DefaultVizierServer(host='127.0.0.1', database_url='sqlite:///:memory:')
    print(server.endpoint, flush=True)
    threading.Event().wait()


def run(algorithm: str, trials: int, endpoints: list[str]) -> Iterator[list[float]]:
    """Runs trials on each endpoint by turns; yields the seconds of their suggestions."""
    from vizier.service import clients
    from vizier.service import pyvizier as vz

    problem = vz.ProblemStatement()
    root = problem.search_space.root
    root.add_float_param('rate', 1e-4, 1.0, scale_type=vz.ScaleType.LOG)
    root.add_float_param('decay', 0.0, 0.3)
    root.add_float_param('dropout', 0.0, 0.5)
    root.add_int_param('depth', 1, 12)
    root.add_categorical_param('norm', ['layer', 'rms', 'none'])
    goal = vz.ObjectiveMetricGoal.MINIMIZE
    problem.metric_information.append(vz.MetricInformation('loss', goal=goal))
    config = vz.StudyConfig.from_problem(problem)
    config.algorithm = algorithm
    studies = []
    for endpoint in endpoints:
        clients.environment_variables.server_endpoint = endpoint
        studies.append(clients.Study.from_study_config(config, owner='me', study_id=algorithm))
    for _ in range(trials):
        seconds = []
        for study in studies:
            began = time.perf_counter()
            (trial,) = study.suggest(count=1)
            seconds.append(time.perf_counter() - began)
            trial.complete(vz.Measurement({'loss': _loss(trial.parameters)}))
        yield seconds
    for study in studies:
        assert len(list(study.trials())) == trials


def _loss(values: Any) -> float:
    norm = {'layer': 0.1, 'rms': 0.0, 'none': 0.5}[values['norm']]
    rate = math.log10(values['rate']) + 2.5
    return float(rate**2 + norm + (values['depth'] - 7) ** 2 / 20 + values['decay'])


if __name__ == '__main__':
    if sys.argv[1] == 'serve':
        serve()
    else:
        for seconds in run(sys.argv[2], int(sys.argv[3]), sys.argv[4:]):
            print(json.dumps(seconds), flush=True)
