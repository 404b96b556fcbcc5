"""Architecture search, compared with a tuned uniform model of at least as many parameters.

    python -m examples.nas_lm
    python -m examples.nas_lm --corpus=../shared/data/tinyshakespeare.txt

First, `lm.StdlibTunable` with two equal blocks is tuned. Then each block has decisions of its own:
activation, convolutions, heads, width and normalization (see `search_spaces.nas.primer_block`). The
first trial of the second search is the best uniform model. Both searches train for the same number
of steps and tokens. The best three of each are trained with three seeds, and their means compared.

The 86 trials take an hour of processor time: about 40 minutes on two cores. The metric is bits per
byte of the standard library, as a mean of three seeds. The uniform model (98,624 parameters) has
2.628. The best architecture (96,000 parameters) has 2.570: convolutions of queries, keys and values
in both blocks, and a narrower second block. On Shakespeare, without another search, it has 2.862; a
uniform model tuned there has 2.903. See benchmarks/results/nas_lm.md. The same command resumes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paxtune import Budget, Limit, MedianStopping, Progress, RegularizedEvolution, Search, Tunable
from paxtune import tune as search
from paxtune.study.replicates import LeaderboardEntry
from search_spaces.lm import BITS_PER_BYTE, StdlibTunable
from search_spaces.nas import BASELINE_PARAMS, primer_block
from trainer.inputs import TextInput
from trainer.layers import Stack
from trainer.symbolic import overrides

EVAL_PART = 16
"""The share of a corpus, at its end, for evaluation: one byte in this many."""

NUM_TRIALS = 48
FINALISTS, SEEDS = 3, 3
BLOCKS = 2
RATIOS = [2.0, 2.5, 2.75, 3.0, 3.25, 3.5]
"""A ratio of 3 everywhere, as in the uniform model, leaves no parameters for convolutions."""

LAYERS = 'task.model.stack.layers'

PLAIN = {
    'attention.query_convolution': None,
    'attention.key_convolution': None,
    'attention.value_convolution': None,
    'norm_policy': 'pre',
}
FEED_FORWARD = {
    'FeedForward(hidden_dims=192)': {
        'feed_forward': 'FeedForward',
        'feed_forward.hidden_ratio': 3.0,
        'feed_forward.activation': 'gelu',
    },
    'GatedFeedForward(hidden_dims=128)': {
        'feed_forward': 'GatedFeedForward',
        'feed_forward.hidden_ratio': 2.0,
        'feed_forward.activation': 'silu',
    },
}
"""Paths of the uniform model's decisions in the space of architectures."""


def Uniform() -> Tunable:
    """`lm.StdlibTunable` with two blocks, 98,624 parameters, and its other decisions."""
    experiment = StdlibTunable()
    experiment.rebind(
        {
            'task.model.stack.repeats': BLOCKS,
            'search': Search(BITS_PER_BYTE, budget=Budget(NUM_TRIALS // 2)),
        }
    )
    return experiment


def Architectures() -> Tunable:
    """Blocks that choose their primitives each, with as many parameters at most."""
    experiment = StdlibTunable()
    experiment.rebind(
        {
            'task.model.stack': Stack([primer_block(RATIOS) for _ in range(BLOCKS)]),
            'search': Search(
                BITS_PER_BYTE,
                budget=Budget(NUM_TRIALS),
                algorithm=RegularizedEvolution(population_size=16, tournament_size=5),
                scheduler=MedianStopping(warmup_steps=80, min_trials=8),
                limits=[Limit('num_params', at_most=BASELINE_PARAMS)],
            ),
        }
    )
    return experiment


def beginning_with(uniform: dict[str, Any], experiment: Tunable) -> Tunable:
    """The search, whose first trial is the uniform model with the given decisions."""
    block = PLAIN | FEED_FORWARD[uniform[f'{LAYERS}[0].feed_forward']]
    block['attention.num_heads'] = uniform[f'{LAYERS}[0].attention.num_heads']
    seed = {path: value for path, value in uniform.items() if not path.startswith(LAYERS)}
    for index in range(BLOCKS):
        seed |= {f'{LAYERS}[{index}].{path}': value for path, value in block.items()}
    return experiment.rebind({'search.initial_trials': [seed]})


def finished(experiment: Tunable, directory: Path) -> LeaderboardEntry:
    """The best of a search, once the best few all have been trained with several seeds."""
    while True:
        with search(experiment, job_log_dir=directory, callbacks=[Progress()]) as study:
            if not study.confirm(FINALISTS, SEEDS):
                return study.leaderboard[0]


def on(corpus: Path, experiment: Tunable, directory: Path) -> Tunable:
    """The experiment on another text, of which the last part is for evaluation."""
    text = corpus.read_bytes()
    cut = len(text) - len(text) // EVAL_PART
    paths = {}
    for name, part in (('train', text[:cut]), ('eval', text[cut:])):
        paths[name] = directory / f'{name}.txt'
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_bytes(part)
    changes = {
        'train_input': TextInput(
            batch_size=32, is_training=True, sequence_length=64, paths=[str(paths['train'])]
        ),
        'eval_inputs.eval': TextInput(
            batch_size=64, sequence_length=64, paths=[str(paths['eval'])]
        ),
        'smoke': {path: x for path, x in experiment.smoke.items() if 'max_bytes' not in path},
    }
    return experiment.rebind(changes)


def table(found: dict[str, LeaderboardEntry]) -> str:
    """Formats the result of each search: bits per byte by seed, their mean, and costs."""
    lines = ['                bits per byte of each seed    mean  parameters  FLOPs per token']
    for name, standing in found.items():
        seeds = ' '.join(f'{trial.reward:.4f}' for trial in standing.trials[:SEEDS])
        costs = standing.trial.metrics
        lines.append(
            f'{name:15} {seeds:26} {standing.rewards[0]:7.4f} {costs["num_params"]:11,.0f} '
            f'{costs["flops_per_token"]:16,.0f}'
        )
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument('--corpus', type=Path, help='a text; the standard library by default')
    flags.add_argument('--job_log_dir', type=Path, default=Path('runs/examples.nas_lm'))
    flags.add_argument(
        '--num_trials',
        type=int,
        default=NUM_TRIALS,
        help='of the second search; the first has half',
    )
    flags.add_argument('--smoke', action='store_true', help='tiny, to see that it runs')
    args = flags.parse_args(argv)
    if args.corpus is not None and not args.corpus.is_file():
        flags.error(f'--corpus={args.corpus}: there is no such file')

    def changed(experiment: Tunable, num_trials: int) -> Tunable:
        if args.corpus is not None:
            experiment = on(args.corpus, experiment, args.job_log_dir)
        experiment.rebind({'search.budget.trials': num_trials})
        return overrides.smoke(experiment) if args.smoke else experiment

    baseline = finished(changed(Uniform(), args.num_trials // 2), args.job_log_dir / 'uniform')
    begun = beginning_with(baseline.trial.decisions, changed(Architectures(), args.num_trials))
    found = finished(begun, args.job_log_dir / 'architectures')
    print(table({'uniform': baseline, 'architectures': found}))


if __name__ == '__main__':
    main()
