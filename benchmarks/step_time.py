"""Time of the train step, beside the same model in plain JAX and in plain flax.

    python benchmarks/step_time.py --check

Byte-level decoders in two sizes, in float32 and bfloat16, on one device. The three take turns, a
few steps each, so that all see the same machine; each has its median. Goal: ours takes at most 1.03
of plain JAX. Beside it: seconds to compile, the bytes that the compiled step needs, and the seconds
that the host needs to dispatch a step, which it does not wait for. `--quick` takes the small size
in float32 alone, and fewer steps; `--check` exits with 1 where the goal is missed.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.plain import gpt, linen  # noqa: E402
from benchmarks.reference_loss import experiment  # noqa: E402
from trainer.inputs.text.stdlib import StdlibInput  # noqa: E402
from trainer.program.setup import compiled, localized  # noqa: E402

GOAL = 1.03
OPTIMIZER = gpt.AdamW(1e-3)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and what it is trained on.

    Attributes:
        name: for the table.
        shape: of the model.
        batch_size: rows in a batch.
        length: tokens in a row.
    """

    name: str
    shape: gpt.Shape
    batch_size: int
    length: int


ON_CPU = [
    Case('small', gpt.Shape(layers=4, dims=128, heads=4, vocab=256), 8, 128),
    Case('large', gpt.Shape(layers=6, dims=384, heads=6, vocab=256), 8, 128),
]
ON_GPU = [
    Case('small', gpt.Shape(layers=6, dims=384, heads=6, vocab=256), 64, 1024),
    Case('124M', gpt.Shape(layers=12, dims=768, heads=12, vocab=50304), 32, 1024),
]


class Contender:
    """One way to write the step.

    Attributes:
        seconds: of each group of steps, for one step.
        dispatch: what the host needed of that.
        compile_seconds: until the first step could be done.
        bytes: arguments, results and what is in between, as the compiler says.
    """

    def __init__(self, step: Callable[..., tuple[Any, Any]], state: Any, batch: Any) -> None:
        begun = time.perf_counter()
        lowered: Any = step
        compiled_step = lowered.lower(state, batch).compile() if hasattr(step, 'lower') else step
        self._step: Any = compiled_step
        self._state, self._batch = state, batch
        self.run(1)
        self.compile_seconds = time.perf_counter() - begun
        self.seconds: list[float] = []
        self.dispatch: list[float] = []

    def run(self, steps: int) -> tuple[float, float]:
        """Does some steps. Returns the seconds of one, and those of its dispatch."""
        begun = time.perf_counter()
        loss = None
        for _ in range(steps):
            self._state, loss = self._step(self._state, self._batch)
        dispatched = time.perf_counter()
        jax.block_until_ready((self._state, loss))
        return (time.perf_counter() - begun) / steps, (dispatched - begun) / steps

    def measure(self, steps: int) -> None:
        """Takes note of how long some steps take."""
        seconds, dispatch = self.run(steps)
        self.seconds.append(seconds)
        self.dispatch.append(dispatch)

    @property
    def bytes(self) -> int:
        memory = self._step.memory_analysis()
        return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes)


class Ours(Contender):
    """The trainer's own step, as its loop calls it."""

    def __init__(self, made: Any) -> None:
        program, values = compiled(made)
        key = program.random_key(0)
        batch = program.put(made.train_input.get_next())
        state = program.init(key, values)
        jax.block_until_ready(state)
        begun = time.perf_counter()
        self._compiled: Any = program.train_step
        super().__init__(lambda s, b: self._compiled(s, b, key, values), state, batch)
        self.compile_seconds = time.perf_counter() - begun

    @property
    def bytes(self) -> int:
        memory = self._compiled.memory_analysis()
        return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes)


def contenders(case: Case, dtype: str) -> dict[str, Contender]:
    """The three, ready to run, on the same batch."""
    data = StdlibInput(
        batch_size=case.batch_size, is_training=True, sequence_length=case.length, split='train'
    )
    made = localized(experiment(data, case.shape, dtype))
    batch = {name: jnp.asarray(value) for name, value in made.train_input.get_next().items()}
    made.train_input.reset()
    plain = gpt.begin(gpt.init(case.shape, jax.random.key(0)))
    plain_step = gpt.make_step(case.shape, OPTIMIZER, jnp.dtype(dtype))
    flax_state, flax_step = linen.begin(case.shape, OPTIMIZER, jnp.dtype(dtype), batch)
    return {
        'ours': Ours(made),
        'plain JAX': Contender(plain_step, plain, batch),
        'plain flax': Contender(flax_step, flax_state, batch),
    }


def compare(case: Case, dtype: str, rounds: int, steps: int) -> dict[str, float]:
    """Prints a row for each, and returns the ratios."""
    found = contenders(case, dtype)
    for index in range(rounds):
        order = list(found.values())
        for each in order[index % 3 :] + order[: index % 3]:
            each.measure(steps)
    medians = {name: statistics.median(each.seconds) for name, each in found.items()}
    for name, each in found.items():
        print(
            f'{case.name:6} {dtype:9} {name:10} {1e3 * medians[name]:8.2f} ms a step'
            f' {medians[name] / medians["plain JAX"]:6.3f} ×'
            f'  compile {each.compile_seconds:5.1f} s  {each.bytes / 2**20:8.1f} MiB'
            f'  host {1e3 * statistics.median(each.dispatch):6.2f} ms'
        )
    # Of each round, so that what slows the machine for a while counts for both.
    ratios = np.array(found['ours'].seconds) / np.array(found['plain JAX'].seconds)
    flax_ratios = np.array(found['ours'].seconds) / np.array(found['plain flax'].seconds)
    key = f'{case.name}_{dtype}'
    return {
        f'{key}_to_plain_jax': round(float(np.median(ratios)), 3),
        f'{key}_to_plain_flax': round(float(np.median(flax_ratios)), 3),
    }


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    cases = ON_CPU if jax.default_backend() == 'cpu' else ON_GPU
    dtypes = ['float32', 'bfloat16']
    rounds, steps = (7, 3) if args.quick else (21, 5)
    if args.quick:
        cases, dtypes = cases[:1], dtypes[:1]
    ratios: dict[str, float] = {}
    for case in cases:
        for dtype in dtypes:
            ratios |= compare(case, dtype, rounds, steps)
    print('RESULT ' + json.dumps(ratios))
    worst = max(value for name, value in ratios.items() if name.endswith('plain_jax'))
    return int(args.check and worst > GOAL)


if __name__ == '__main__':
    sys.exit(main())
