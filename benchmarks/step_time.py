"""Time of the train step, beside the same model in plain JAX and in plain flax.

    python benchmarks/step_time.py --check

Decoders on one device, on random tokens. On a CPU: two byte-level sizes, in float32 and bfloat16.
On a GPU: a small one in both, and 124M, 350M and 1B in bfloat16 with the attention of cuDNN. The
contenders take turns, a few steps each, so that all see the same machine; each has its median.
Goal: ours takes at most 1.03 of plain JAX.

Beside it: seconds to compile, the bytes that the compiled step needs, and the seconds that the host
needs to dispatch a step, which it does not wait for. Seconds of CPUs change less with other work on
the machine. Then tokens per second, and model FLOPs utilization where the peak of the device is
known (`trainer/program/device_peaks.py`). On a GPU a
profile splits the time of a step by kinds of kernels.

`--quick` takes the small size in float32 alone, and fewer steps. `--only` takes one size, and can
be given again. `--pgle` adds the step that JAX compiles from a profile, on a GPU. `--check` exits
with 1 where the goal is missed.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.kernels import kernel_seconds, kind_of  # noqa: E402
from benchmarks.plain import gpt, linen  # noqa: E402
from benchmarks.reference_loss import experiment  # noqa: E402
from trainer.inputs.synthetic import SyntheticLmInput  # noqa: E402
from trainer.program import device_peaks  # noqa: E402
from trainer.program.costs import static_costs  # noqa: E402
from trainer.program.setup import compiled, localized  # noqa: E402
from trainer.runtime import pgle  # noqa: E402

BEGUN = time.perf_counter()
GOAL = 1.03
OPTIMIZER = gpt.AdamW(1e-3)
OURS, PLAIN, FLAX, PGLE = 'ours', 'plain JAX', 'plain flax', 'ours, PGLE'


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and what it is trained on.

    Attributes:
        name: for the table.
        shape: of the model.
        batch_size: rows in a batch.
        length: tokens in a row.
        dtypes: of activations, one comparison each.
    """

    name: str
    shape: gpt.Shape
    batch_size: int
    length: int
    dtypes: tuple[str, ...] = ('float32', 'bfloat16')

    def made(self, dtype: str) -> Any:
        """Returns the experiment, and the same batch for every contender."""
        data = SyntheticLmInput(
            batch_size=self.batch_size,
            is_training=True,
            sequence_length=self.length,
            vocab_size=self.shape.vocab,
        )
        return localized(experiment(data, self.shape, dtype))


ON_CPU = [
    Case('small', gpt.Shape(layers=4, dims=128, heads=4, vocab=256), 8, 128),
    Case('large', gpt.Shape(layers=6, dims=384, heads=6, vocab=256), 8, 128),
]
ON_GPU = [
    Case('small', gpt.Shape(layers=6, dims=384, heads=6, vocab=256), 64, 1024),
    Case('124M', gpt.Shape(12, 768, 12, 50304, 'cudnn'), 32, 1024, ('bfloat16',)),
    Case('350M', gpt.Shape(24, 1024, 16, 50304, 'cudnn'), 16, 1024, ('bfloat16',)),
    Case('1B', gpt.Shape(18, 2048, 16, 50304, 'cudnn'), 8, 1024, ('bfloat16',)),
]


class Contender:
    """One way to write the step.

    Attributes:
        seconds: of each group of steps, for one step.
        dispatch: what the host needed of that.
        cpu: seconds of all threads of the process, for one step of each group.
        compile_seconds: until the first step could be done.
        bytes: arguments, results and what is in between, as the compiler says; 0 if it does not.
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
        self.cpu: list[float] = []

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
        begun = time.process_time()
        seconds, dispatch = self.run(steps)
        self.cpu.append((time.process_time() - begun) / steps)
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
        self._program = program
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


class WithPgle(Ours):
    """The trainer's own step, which JAX profiles and compiles again."""

    bytes = 0  # JAX does not say.

    def __init__(self, made: Any) -> None:
        super().__init__(made)
        begun = time.perf_counter()
        self.run(jax.config.jax_pgle_profiling_runs + 1)  # type: ignore[attr-defined]
        self.compile_seconds += time.perf_counter() - begun

    def run(self, steps: int) -> tuple[float, float]:
        pgle.enable()
        try:
            self._compiled = self._program.train_step
            return super().run(steps)
        finally:
            jax.config.update('jax_enable_pgle', False)


def contenders(case: Case, dtype: str, with_pgle: bool) -> dict[str, Contender]:
    """Returns the contenders, ready to run, on the same batch."""
    made = case.made(dtype)
    batch = {name: jnp.asarray(value) for name, value in made.train_input.get_next().items()}
    made.train_input.reset()
    plain = gpt.begin(gpt.init(case.shape, jax.random.key(0)))
    plain_step = gpt.make_step(case.shape, OPTIMIZER, jnp.dtype(dtype))
    makers: dict[str, Callable[[], Contender]] = {
        OURS: lambda: Ours(made),
        PLAIN: lambda: Contender(plain_step, plain, batch),
    }
    if case.shape.vocab == 256:  # Larger ones have room for few copies of the state.
        flax_state, flax_step = linen.begin(case.shape, OPTIMIZER, jnp.dtype(dtype), batch)
        makers[FLAX] = lambda: Contender(flax_step, flax_state, batch)
    if with_pgle:
        makers[PGLE] = lambda: WithPgle(case.made(dtype))
    found: dict[str, Contender] = {}
    for name, make in makers.items():
        found[name] = make()
        # A run that is ended before its rows shows here how far it came.
        print(
            f'{case.name} {dtype} {name}: ready after {time.perf_counter() - BEGUN:.0f} s',
            file=sys.stderr,
        )
    return found


def rates(case: Case, made: Any, seconds: float) -> str:
    """Returns tokens per second, and model FLOPs utilization where the peak is known."""
    tokens = case.batch_size * case.length / seconds
    flops = tokens * static_costs(made)['flops_per_token']
    utilization = device_peaks.utilization(flops, jax.devices()[:1])
    return f'{tokens:9.0f} tokens/s' + ('' if utilization is None else f'  MFU {utilization:.3f}')


def print_kernels(name: str, contender: Contender, steps: int = 3) -> None:
    """Prints the milliseconds of a step by kinds of kernels, and the longest of the others."""
    each = kernel_seconds(lambda: contender.run(steps))
    milliseconds = {kernel: 1e3 * seconds / steps for kernel, seconds in each.items()}
    kinds: dict[str, float] = {}
    for kernel, ms in milliseconds.items():
        kinds[kind_of(kernel)] = kinds.get(kind_of(kernel), 0.0) + ms
    print(f'  {name}: ' + ', '.join(f'{kind} {ms:.2f} ms' for kind, ms in sorted(kinds.items())))
    others = sorted((-ms, k) for k, ms in milliseconds.items() if kind_of(k) == 'others')[:6]
    print('    others: ' + ', '.join(f'{k} {-ms:.2f}' for ms, k in others), flush=True)


def compare(case: Case, dtype: str, rounds: int, steps: int, with_pgle: bool) -> dict[str, float]:
    """Prints a row for each, and returns the ratios."""
    found = contenders(case, dtype, with_pgle)
    made = case.made(dtype)
    for index in range(rounds):
        order = list(found.values())
        turn = index % len(order)
        for each in order[turn:] + order[:turn]:
            each.measure(steps)
    medians = {name: statistics.median(each.seconds) for name, each in found.items()}
    for name, each in found.items():
        print(
            f'{case.name:6} {dtype:9} {name:10} {1e3 * medians[name]:8.2f} ms a step'
            f' {medians[name] / medians[PLAIN]:6.3f} ×'
            f'  compile {each.compile_seconds:5.1f} s  {each.bytes / 2**20:8.1f} MiB'
            f'  host {1e3 * statistics.median(each.dispatch):6.2f} ms'
            f'  CPUs {1e3 * statistics.median(each.cpu):7.2f} ms'
            f'  {rates(case, made, medians[name])}',
            flush=True,
        )
    if jax.default_backend() == 'gpu':
        for name, each in found.items():
            print_kernels(name, each)
    # In each round, so that what slows the machine for a while counts for both.
    ours, key = found[OURS], f'{case.name}_{dtype}'
    ratios: dict[str, float] = {}
    for name, each in found.items():
        if name != OURS:
            to = f'{key}_to_{name.replace(", ", "_").replace(" ", "_").lower()}'
            ratios[to] = _ratio(ours.seconds, each.seconds)
            ratios[f'{to}_cpu'] = _ratio(ours.cpu, each.cpu)
    return ratios


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    return round(float(np.median(np.array(ours) / np.array(others))), 3)


def main() -> int:
    on_cpu = jax.default_backend() == 'cpu'
    cases = ON_CPU if on_cpu else ON_GPU
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--only', choices=[case.name for case in cases], action='append')
    flags.add_argument('--pgle', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    rounds, steps = (7, 3) if args.quick else (21, 5) if on_cpu else (11, 3)
    if args.quick:
        cases = [dataclasses.replace(cases[0], dtypes=('float32',))]
    elif args.only:
        cases = [case for case in cases if case.name in args.only]
    ratios: dict[str, float] = {}
    for case in cases:
        for dtype in case.dtypes:
            ratios |= compare(case, dtype, rounds, steps, args.pgle)
    print('RESULT ' + json.dumps(ratios))
    worst = max(value for name, value in ratios.items() if name.endswith('plain_jax'))
    return int(args.check and worst > GOAL)


if __name__ == '__main__':
    sys.exit(main())
