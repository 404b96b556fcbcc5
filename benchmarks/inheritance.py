"""Steps of training that architectures need with inherited weights, and from scratch.

    python benchmarks/inheritance.py --check

`nas.StdlibNas` with three layers of width 32, rows of 32 bytes, batches of 8, and a fixed learning
rate, so that only architectures differ. A training from scratch has 400 steps. Two comparisons:

- *Children*: twenty parents are drawn at random and trained from scratch. Each has one child, with
  one decision changed as in evolution. A child trains from scratch, and from the weights of its
  parent for 50, 100, 200 and 400 steps, each with a schedule of that length. It needs the least of
  these after which its loss is at most that from scratch; 800 if there is none. The steps of the
  parents, which a search has trained already, do not count.
- *Searches*: evolution with the same seeds and initial population. With `warm_start='parent'`, a
  child has 100 steps, and the search 80 trials. The loss to reach is the best one of 40 trials from
  scratch. The searches are compared by the steps of all trials together until they reach it. Steps
  are counted when a trial ends, those of the initial population too.

Goal: in both, the median of the steps with inheritance is at most half of those from scratch, and
each search with inheritance reaches the loss. `--quick` has few trials and steps; `--check` exits
with 1 where the goal is missed.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.shrunk import SIZE, length
from paxtune import tune
from paxtune.algorithms import RegularizedEvolution
from paxtune.algorithms.encoding.sampling import draw, mutate
from paxtune.config.budget import Budget
from paxtune.experiment import Tunable
from paxtune.search_space.space import Space
from paxtune.study.trial_experiments import parts_of
from search_spaces import nas
from search_spaces.lm import BITS_PER_BYTE
from trainer.experiment import Experiment
from trainer.loop.train_loop import run
from trainer.symbolic.overrides import replaced
from trainer.warm_start_rules import Inheritance

Course = list[tuple[int, float]]
"""(steps of all trials so far, best reward so far) after each trial."""


def space(steps: int) -> Tunable:
    """The shrunk space."""
    changes = {
        'task.model.stack': nas.decoder(num_layers=3),
        'task.model.embedding.dims': 32,
        'task.learner.learning_rate': 0.01,
        'train_input.batch_size': 8,
        'train_input.sequence_length': 32,
        'eval_inputs.eval.sequence_length': 32,
        'eval_inputs.eval.max_bytes': 65536,
    }
    return replaced(nas.StdlibNas(), SIZE | changes | length(steps), 'benchmark')


def search(steps: int, seed: int, num_trials: int) -> Tunable:
    """The search from scratch."""
    changes = {
        'search.algorithm': RegularizedEvolution(population_size=4, tournament_size=2),
        'search.budget': Budget(num_trials),
        'search.scheduler': None,
        'search.seed': seed,
    }
    return replaced(space(steps), changes, 'benchmark')


def inheriting(searched: Tunable, steps: int) -> Tunable:
    """The same search, whose children train `steps` steps from the weights of their parents."""
    overrides = {
        path: value
        for path, value in length(steps).items()
        if not path.startswith(('train.evaluation', 'train.checkpoints'))
    }
    changes = {'search.warm_start': 'parent', 'search.child_overrides': overrides}
    return replaced(searched, changes, 'benchmark')


def course(searched: Tunable) -> Course:
    """Runs a search, and returns its best reward as a function of steps."""
    spent, best, found = 0, float('inf'), Course()
    with tempfile.TemporaryDirectory() as directory, tune(searched, job_log_dir=directory) as study:
        for trial in study.trials:
            spent += trial.measurements[-1].step if trial.measurements else 0
            best = min(best, trial.reward if trial.reward is not None else best)
            found.append((spent, best))
    return found


def steps_to(reward: float, found: Course) -> int | None:
    """Steps until a reward is reached; None if it never is."""
    return next((steps for steps, best in found if best <= reward), None)


def reward(experiment: Experiment, directory: Path) -> float:
    """Bits per byte of a run."""
    *_, last = run(experiment, directory)
    return BITS_PER_BYTE.value(last.metrics)


def child(seed: int, steps: int, lengths: list[int]) -> float:
    """The ratio of the steps that one child needs."""
    rng, of = random.Random(seed), Space(space(steps))
    parent = draw(of.spec, rng)
    decisions = mutate(of.spec, parent, rng)
    experiment = parts_of(of, decisions)['']
    with tempfile.TemporaryDirectory() as base:
        before = reward(parts_of(of, parent)[''], Path(base) / 'parent')
        scratch = reward(experiment, Path(base) / 'scratch')
        start = {'train.init_from_checkpoint': Inheritance(f'{base}/parent/checkpoints')}
        found = [
            reward(replaced(experiment, start | length(each), 'benchmark'), Path(base) / str(each))
            for each in lengths
        ]
    needed = next((n for n, each in zip(lengths, found, strict=True) if each <= scratch), 2 * steps)
    changed = sorted(id_ for id_ in {*parent, *decisions} if parent.get(id_) != decisions.get(id_))
    print(
        f'child {seed:2}: parent {before:.3f}, from scratch {scratch:.3f}, inherited '
        + ' '.join(f'{n}:{each:.3f}' for n, each in zip(lengths, found, strict=True))
        + f'  ratio {needed / steps:.3f}  {changed[0]}',
        flush=True,
    )
    return needed / steps


def compare_searches(seed: int, steps: int, of_child: int, num_trials: int) -> tuple[float, bool]:
    """The ratio of the steps of two searches, and whether the one with inheritance gets there."""
    scratch = course(search(steps, seed, num_trials))
    heir = course(inheriting(search(steps, seed, 2 * num_trials), of_child))
    target = scratch[-1][1]
    needed, own = steps_to(target, scratch), steps_to(target, heir)
    print(
        f'search {seed}: {target:.4f} bits per byte after {needed} steps from scratch, {own} with '
        f'inheritance, which reached {heir[-1][1]:.4f} in {heir[-1][0]}'
    )
    for name, each in (('scratch', scratch), ('inheritance', heir)):
        print(f'  {name}: ' + ' '.join(f'{at}:{best:.3f}' for at, best in each), flush=True)
    return (own or heir[-1][0]) / (needed or scratch[-1][0]), own is not None


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    began = time.monotonic()
    steps, lengths, of_child = (16, [8], 8) if args.quick else (400, [50, 100, 200, 400], 100)
    children = [child(seed, steps, lengths) for seed in range(1 if args.quick else 20)]
    searches = [
        compare_searches(seed, steps, of_child, 6 if args.quick else 40)
        for seed in range(1 if args.quick else 3)
    ]
    result = {
        'children': statistics.median(children),
        'share_of_children_within_half': sum(each <= 0.5 for each in children) / len(children),
        'searches': round(statistics.median(ratio for ratio, _ in searches), 3),
        'reached': sum(is_reached for _, is_reached in searches),
        'seconds': round(time.monotonic() - began),
    }
    print('RESULT ' + json.dumps(result))
    is_met = max(result['children'], result['searches']) <= 0.5
    return int(args.check and not (is_met and all(is_reached for _, is_reached in searches)))


if __name__ == '__main__':
    sys.exit(main())
