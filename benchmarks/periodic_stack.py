"""Time to compile a stack of two kinds of layers that alternate.

    python benchmarks/periodic_stack.py --check

A stack repeats attention and feed-forward 24 times. Contenders: as a list of two layers, which is
scanned as one period; as one inner `Stack` of both, repeated; and unrolled. Each compiles the
gradient of its sum, and takes turns with the others. Seconds are those of the processor, since
other work on the machine changes the elapsed ones; each contender has its median.

Goal: the list takes at most 1.2 of the inner stack. `--quick` repeats 8 times and compiles once.
`--check` exits with 1 where the goal is missed.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'

import jax
import jax.numpy as jnp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from trainer.layers import Attention, FeedForward, Layer, Residual, Stack  # noqa: E402

GOAL = 1.2
PERIOD, INNER, UNROLLED = 'list of two', 'inner stack', 'unrolled'
X_BTD = jax.ShapeDtypeStruct((4, 64, 64), jnp.float32)


def stacks(repeats: int) -> dict[str, Stack]:
    """The contenders."""

    def both() -> list[Layer]:
        return [Residual(Attention(4)), Residual(FeedForward(128))]

    return {
        PERIOD: Stack(both(), repeats=repeats, scan='always'),
        INNER: Stack([Stack(both(), scan='never')], repeats=repeats, scan='always'),
        UNROLLED: Stack(both(), repeats=repeats, scan='never'),
    }


def compile_seconds(stack: Stack) -> float:
    """Seconds of the processor to trace and compile the gradient of a stack."""
    jax.clear_caches()
    module = stack.module()
    variables: Any = jax.eval_shape(module.init, jax.random.key(0), X_BTD)

    def loss(variables: Any, x_BTD: jax.Array) -> jax.Array:
        return jnp.sum(jnp.asarray(module.apply(variables, x_BTD)))

    began = time.process_time()
    jax.jit(jax.grad(loss)).lower(variables, X_BTD).compile()
    return time.process_time() - began


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    repeats, times = (8, 1) if args.quick else (24, 3)
    each = stacks(repeats)
    compile_seconds(each[PERIOD])  # What a process does once.
    turns = [{name: compile_seconds(stack) for name, stack in each.items()} for _ in range(times)]
    seconds = {name: statistics.median(turn[name] for turn in turns) for name in each}
    for name, taken in seconds.items():
        print(f'{name:12} {taken:6.2f} s, {taken / seconds[INNER]:.2f} of the {INNER}')
    ratio = seconds[PERIOD] / seconds[INNER]
    print('RESULT ' + json.dumps({'ratio': round(ratio, 3), 'repeats': repeats}))
    return int(args.check and ratio > GOAL)


if __name__ == '__main__':
    sys.exit(main())
