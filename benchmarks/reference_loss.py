"""Losses of the trainer and of a plain-JAX loop, step by step.

    python benchmarks/reference_loss.py --check

A byte-level model of 6 layers × 128, in float32, on tinyshakespeare where it is in
`../shared/data`, and on the embedded corpus (the sources of Python's standard library). Both begin
with the same parameters and see the same batches. Goal: the losses of the first 50 steps agree to a
relative 1e-4, each of them. `--quick` does 10 steps, of the embedded corpus alone.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.plain import gpt  # noqa: E402
from trainer.experiment import Experiment, TrainLoop  # noqa: E402
from trainer.inputs.base import Input  # noqa: E402
from trainer.inputs.text.stdlib import StdlibInput  # noqa: E402
from trainer.inputs.text.text import TextInput  # noqa: E402
from trainer.layers import (  # noqa: E402
    Attention,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import AdamW, Learner  # noqa: E402
from trainer.mesh import Mesh  # noqa: E402
from trainer.program.setup import compiled, localized  # noqa: E402
from trainer.tasks import LanguageModelTask  # noqa: E402

SHAKESPEARE = ROOT.parent / 'shared' / 'data' / 'tinyshakespeare.txt'
SHAPE = gpt.Shape(layers=6, dims=128, heads=4, vocab=256)
RATE, GOAL = 1e-3, 1e-4


def experiment(data: Input, shape: gpt.Shape = SHAPE, dtype: str = 'float32') -> Experiment:
    """The model on one device."""
    attention = Attention(num_heads=shape.heads, implementation=shape.attention)
    block = TransformerBlock(attention, FeedForward())
    return Experiment(
        task=LanguageModelTask(
            TransformerLm(
                Embedding(shape.vocab, shape.dims),
                Stack([block], repeats=shape.layers, scan='never'),
            ),
            Learner(learning_rate=RATE, optimizer=AdamW()),
            fprop_dtype=dtype,
        ),
        train_input=data,
        mesh=Mesh(data=1),
        train=TrainLoop(num_train_steps=50),
    )


def losses(data: Input, steps: int) -> tuple[list[float], list[float]]:
    """Our losses, and those of the plain loop."""
    made = localized(experiment(data))
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    theirs = gpt.begin(jax.tree.map(lambda leaf: jax.numpy.copy(leaf), state.params))
    step = gpt.make_step(SHAPE, gpt.AdamW(RATE))
    found: tuple[list[float], list[float]] = [], []
    for _ in range(steps):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, key, values)
        theirs, loss = step(theirs, batch)
        found[0].append(float(metrics['loss'].mean))
        found[1].append(float(loss))
    return found


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    common = {'batch_size': 16, 'is_training': True, 'sequence_length': 64}
    corpora: dict[str, Input] = {'stdlib': StdlibInput(split='train', **common)}
    if SHAKESPEARE.exists() and not args.quick:
        corpora['tinyshakespeare'] = TextInput(paths=[str(SHAKESPEARE)], **common)
    worst = {}
    for name, data in corpora.items():
        ours, theirs = losses(data, 10 if args.quick else 50)
        apart = np.abs(np.array(ours) / np.array(theirs) - 1)
        worst[name] = float(apart.max())
        first, last = ours[0], ours[-1]
        print(f'{name}: {first:.4f} → {last:.4f} in {len(ours)} steps; {worst[name]:.1e} apart')
    print('RESULT ' + json.dumps(worst))
    return int(args.check and max(worst.values()) > GOAL)


if __name__ == '__main__':
    sys.exit(main())
