"""A process that runs cells: one line of JSON for each on its standard input, and an answer.

It runs in the environment of the methods that it is asked for.
"""

import importlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.search.cells import Cell, run
from benchmarks.search.fronts import front_problems
from benchmarks.search.methods import FRONT_METHODS, KNOWING, LIMITED, METHODS, Refused
from benchmarks.search.problems import problems

_METHODS = {method.name: method for method in (*KNOWING, *METHODS, *LIMITED)}
_FRONT_METHODS = {method.name: method for method in FRONT_METHODS}


def answer(cell: Cell, data_dir: Path, cache_dir: Path) -> dict[str, Any]:
    """Runs a cell, and keeps it.

    Returns:
        'error', a traceback, where it went wrong; nothing else is wrong with it otherwise.
    """
    try:
        fronts = front_problems()
        is_front = cell.problem in fronts
        method = (_FRONT_METHODS if is_front else _METHODS)[cell.method]
        all_: Any = fronts if is_front else problems(data_dir)
        problem = all_[cell.problem]
        module: Any = importlib.import_module(f'benchmarks.search.{method.module}')
        try:
            known = problem.knowing(method.prior)
            if method.earlier == 'none':
                searcher = module.make(cell.method, known, cell.seed)
            else:
                earlier: Any = importlib.import_module('benchmarks.search.earlier')
                searcher = earlier.make(method.earlier, known, cell.seed, all_)
        except Refused as refused:
            cell.write(cache_dir, {'refused': str(refused)})
        else:
            cell.write(
                cache_dir, run(searcher, problem.instance(cell.seed), cell.trials, method.parallel)
            )
    except Exception:
        return {'error': traceback.format_exc()}
    return {}


def main() -> None:
    # What libraries print must not stand between the answers.
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    data_dir, cache_dir = map(Path, sys.argv[1:])
    for line in sys.stdin:
        found = answer(Cell(**json.loads(line)), data_dir, cache_dir)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({'peak_bytes': peak, **found}), file=answers, flush=True)


if __name__ == '__main__':
    main()
