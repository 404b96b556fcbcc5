"""Steps of training that evolution needs with inherited weights, and from scratch.

    python benchmarks/inheritance.py --check

`nas.StdlibNas` with three layers of width 32, rows of 32 bytes, batches of 8, and a fixed learning
rate, so that only architectures differ. Both searches have the same evolution, seeds and initial
population, whose trials have 400 steps. From scratch, a child has 400 steps, too. With
`warm_start='parent'`, it has 100. For each seed, the reward to reach is the
best one of the search from scratch. The searches are compared by the steps of all trials together
until they reach it: steps are counted when a trial ends.

Goal: with inheritance, the median over the seeds is at most half of the steps. A seed that does not
reach the reward counts with all of its steps, and misses the goal. `--quick` has one seed and few
trials; `--check` exits with 1 where the goal is missed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from paxtune import tune
from paxtune.algorithms import RegularizedEvolution
from paxtune.config.budget import Budget
from paxtune.experiment import Tunable
from search_spaces import nas
from trainer.symbolic.overrides import replaced

Course = list[tuple[int, float]]
"""(steps of all trials so far, best reward so far) after each trial."""


def space(steps: int, seed: int, num_trials: int) -> Tunable:
    """The shrunk search from scratch."""
    changes: dict[str, Any] = {
        'task.model.stack': nas.decoder(num_layers=3),
        'task.model.embedding.dims': 32,
        'task.learner.learning_rate': 0.01,
        'task.learner.schedule.decay_steps': steps,
        'task.learner.schedule.warmup_steps': steps // 8,
        'train_input.batch_size': 8,
        'train_input.sequence_length': 32,
        'eval_inputs.eval.sequence_length': 32,
        'eval_inputs.eval.max_bytes': 65536,
        'train.num_train_steps': steps,
        'train.evaluation.every': steps,
        'train.checkpoints.every': steps,
        'search.algorithm': RegularizedEvolution(population_size=4, tournament_size=2),
        'search.budget': Budget(num_trials),
        'search.scheduler': None,
        'search.seed': seed,
    }
    return replaced(nas.StdlibNas(), changes, 'benchmark')


def inheriting(search: Tunable, steps: int) -> Tunable:
    """The same search, whose children train `steps` steps from the weights of their parents."""
    overrides = {
        'train.num_train_steps': steps,
        'task.learner.schedule.decay_steps': steps,
        'task.learner.schedule.warmup_steps': steps // 8,
    }
    changes = {'search.warm_start': 'parent', 'search.child_overrides': overrides}
    return replaced(search, changes, 'benchmark')


def course(search: Tunable) -> Course:
    """Runs a search, and returns its best reward as a function of steps."""
    spent, best, found = 0, float('inf'), Course()
    with tempfile.TemporaryDirectory() as directory, tune(search, job_log_dir=directory) as study:
        for trial in study.trials:
            spent += trial.measurements[-1].step if trial.measurements else 0
            best = min(best, trial.reward if trial.reward is not None else best)
            found.append((spent, best))
    return found


def steps_to(reward: float, found: Course) -> int | None:
    """Steps until a reward is reached; None if it never is."""
    return next((steps for steps, best in found if best <= reward), None)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    steps, child, num_trials, more = (16, 8, 6, 2) if args.quick else (400, 100, 14, 8)
    ratios, reached, began = [], 0, time.monotonic()
    for seed in range(1 if args.quick else 3):
        scratch = course(space(steps, seed, num_trials))
        heir = course(inheriting(space(steps, seed, num_trials + more), child))
        target = scratch[-1][1]
        needed, own = steps_to(target, scratch), steps_to(target, heir)
        reached += own is not None
        ratios.append((own or heir[-1][0]) / (needed or scratch[-1][0]))
        print(
            f'seed {seed}: {target:.4f} bits per byte after {needed} steps from scratch, ', end=''
        )
        print(f'{own} with inheritance, which reached {heir[-1][1]:.4f} in {heir[-1][0]}')
        for name, each in (('scratch', scratch), ('inheritance', heir)):
            print(f'  {name}: ' + ' '.join(f'{at}:{best:.3f}' for at, best in each), flush=True)
    ratio = statistics.median(ratios)
    print(f'median ratio of steps {ratio:.2f}, {time.monotonic() - began:.0f} s')
    result = {'ratio': ratio, 'ratios': ratios, 'reached': reached, 'seeds': len(ratios)}
    print('RESULT ' + json.dumps(result))
    return int(args.check and (ratio > 0.5 or reached < len(ratios)))


if __name__ == '__main__':
    sys.exit(main())
