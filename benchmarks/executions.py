"""Speed of training with several steps in one execution, beside single steps.

    python benchmarks/executions.py --check

Byte-level decoders in four sizes train in float32 on one device, with `train.steps_per_execution`
1, 4, 16 and 64. All are ordinary runs of the trainer, inputs included, and take turns within a
round. The speed is that of the run's own report, which leaves out its first execution. Ratios are
medians over the rounds.

Goal: no number of steps has less than 0.95 of the speed of single ones. `--quick` has the two
smallest models and three rounds, `--only` one model, and can be given again. `--check` exits with 1
where the goal is missed.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.packing import CASES, Case
from benchmarks.plain import gpt
from benchmarks.reference_loss import experiment
from trainer.experiment import Evaluation, TrainLoop
from trainer.inputs.text.stdlib import StdlibInput
from trainer.loop.train_loop import run

GOAL = 0.95
SIZES = (1, 4, 16, 64)
TINY = Case('3k', gpt.Shape(layers=1, dims=16, heads=2, vocab=256), batch_size=2, length=32)
SMALL_BATCH = Case('0.1M, batch of 2', CASES[0].shape, batch_size=2, length=32)
STEPS = [(TINY, 1920), (SMALL_BATCH, 960), (CASES[0], 192), (CASES[1], 128)]
"""Models, and the steps of a run."""


def steps_per_second(case: Case, steps: int, size: int) -> float:
    """Trains, and returns the speed that the run reports."""
    data = StdlibInput(
        batch_size=case.batch_size, is_training=True, sequence_length=case.length, split='train'
    )
    made = experiment(data, case.shape)
    made.rebind(
        train=TrainLoop(
            steps,
            evaluation=Evaluation(steps),
            checkpoints=None,
            summary_interval_steps=64,
            steps_per_execution=size,
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        (report,) = run(made, directory)
    return report.metrics['train/steps_per_second']


def compare(case: Case, steps: int, rounds: int) -> dict[str, float]:
    """Prints a row for a model, and returns its ratios."""
    speeds: dict[int, list[float]] = {size: [] for size in SIZES}
    for index in range(rounds):
        for size in SIZES[index % len(SIZES) :] + SIZES[: index % len(SIZES)]:
            speeds[size].append(steps_per_second(case, steps, size))
    ratios = {
        size: statistics.median(a / b for a, b in zip(each, speeds[1], strict=True))
        for size, each in speeds.items()
    }
    cells = (f'{size:3} at once {ratio:6.3f} ×' for size, ratio in ratios.items() if size > 1)
    single = 1e3 / statistics.median(speeds[1])
    print(f'{case.name:16} {single:8.2f} ms a step alone ', *cells, flush=True)
    return {f'{case.name}_{size}': ratio for size, ratio in ratios.items() if size > 1}


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--only', choices=[case.name for case, _ in STEPS], action='append')
    flags.add_argument('--rounds', type=int)
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    cases, rounds = (STEPS[:2], 3) if args.quick else (STEPS, 7)
    if args.only:
        cases = [(case, steps) for case, steps in STEPS if case.name in args.only]
    result: dict[str, float] = {}
    for case, steps in cases:
        result |= compare(case, steps, args.rounds or rounds)
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in result.items()}))
    return int(args.check and min(result.values()) < GOAL)


if __name__ == '__main__':
    sys.exit(main())
