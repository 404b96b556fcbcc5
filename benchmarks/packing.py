"""Time and memory of trials that train as one program, beside the same trials one by one.

    python benchmarks/packing.py --check

Byte-level decoders in three sizes, in float32 on one device, with 1, 4 and 16 lanes; on a GPU also
with 64.

- *Steps*: a step of all lanes under `Pack(…, 'always')`, and as many steps of runs alone. Both take
  turns within a round, and each has its median. A single lane trains alone, so its ratio is the
  cost of the lanes themselves. Memory is that of the compiled step: of all lanes, and of a run
  alone. A cell that needs more than half of the memory, or longer than 20 s, is left out.
- *Searches*: `python -m paxtune.search` on the smallest model, with `--pack=off`, `4` (`16` on a
  GPU) and `auto`. All train the same random trials to their ends and take turns. The first search
  of each kind fills the cache of compiled programs, and does not count. Trials per hour count from
  the start of the first trial to the end of the last one, without the start of the process.

Goal: searches with `auto` have at least 0.95 of the trials per hour of unpacked ones, in the median
of the repeats. `--quick` has the smallest model, 1 and 4 lanes, and one repeat of shorter searches.
`--only` takes one size, and can be given again. `--adapters` takes 8 lanes of LoRA on the shape of
SmolLM2-135M in place of the sizes. `--no_searches` leaves out the searches. `--check` exits with 1
where the goal is missed.
"""

import argparse
import dataclasses
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.plain import gpt  # noqa: E402
from benchmarks.reference_loss import experiment  # noqa: E402
from search_spaces import lm  # noqa: E402
from trainer.experiment import Experiment  # noqa: E402
from trainer.inputs.synthetic import SyntheticLmInput  # noqa: E402
from trainer.inputs.text.stdlib import StdlibInput  # noqa: E402
from trainer.layers import LoRA  # noqa: E402
from trainer.program.packing.packing import Pack, PackedRun  # noqa: E402
from trainer.program.packing.stepper import Stepper  # noqa: E402
from trainer.program.program import memory_bytes  # noqa: E402
from trainer.program.setup import compiled, localized  # noqa: E402

GOAL = 0.95
os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # Searches need some of a GPU's.
ON_CPU = jax.default_backend() == 'cpu'
LANES = (1, 4, 16) if ON_CPU else (1, 4, 16, 64)
KINDS = ('off', '4' if ON_CPU else '16', 'auto')
LONGEST = 20.0
"""Seconds of a step that a cell may take."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and what it is trained on.

    Attributes:
        name: its size, for the table.
        shape: of the model.
        batch_size: rows in a batch.
        length: tokens in a row.
    """

    name: str
    shape: gpt.Shape
    batch_size: int
    length: int = 64

    def made(self) -> Experiment:
        """The experiment on the sources of Python's standard library."""
        data = StdlibInput(
            batch_size=self.batch_size, is_training=True, sequence_length=self.length, split='train'
        )
        return experiment(data, self.shape)


@dataclasses.dataclass(frozen=True)
class AdaptersCase(Case):
    """LoRA of rank 16 beside the frozen kernels of SmolLM2-135M, in bfloat16, on random tokens.

    Attributes:
        is_small: takes a tiny model in place of SmolLM2.
    """

    is_small: bool = False

    def made(self) -> Experiment:
        tunable = lm.FinetuneTunable()
        task = tunable.sym_getattr('task')
        model = tunable.smoke['task.model'] if self.is_small else task.sym_getattr('model')
        data = SyntheticLmInput(
            batch_size=self.batch_size,
            is_training=True,
            sequence_length=self.length,
            vocab_size=model.vocab_size,
        )
        made = experiment(data, self.shape, 'bfloat16')
        return made.rebind({'task.model': model.clone(deep=True), 'task.adapters': LoRA(16)})


CASES = [
    Case('0.1M', gpt.Shape(layers=2, dims=64, heads=4, vocab=256), 16),
    Case('1M', gpt.Shape(layers=5, dims=128, heads=4, vocab=256), 16),
    Case('10M', gpt.Shape(layers=6, dims=384, heads=6, vocab=256), 4),
]
ADAPTERS = AdaptersCase('SmolLM2', CASES[0].shape, batch_size=8, length=512)
SMALL_ADAPTERS = dataclasses.replace(ADAPTERS, batch_size=2, length=16, is_small=True)


class LeftOutError(Exception):
    """A cell is too large or too slow for this machine."""


def stepping(
    runs: Sequence[Any], batches: Sequence[Any], pack: Pack | None
) -> Callable[[int], float]:
    """Makes a function that does steps of all runs, and returns the seconds of one step of all."""

    def do(steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            if pack is None:
                metrics = [run.step(batch) for run, batch in zip(runs, batches, strict=True)]
            else:
                metrics = pack.step(runs, batches)
        # The states are ready when the metrics of the same program are. Reading them would copy.
        jax.block_until_ready(metrics)
        return (time.perf_counter() - begun) / steps

    return do


def memory_of(step: Any, available: int | None = None) -> int:
    """Bytes of a compiled step.

    Args:
        step: the compiled step.
        available: bytes that there are; None for the memory of the device or of the machine.

    Raises:
        LeftOutError: more than half of the memory.
    """
    needed = memory_bytes(step)
    if needed > (available or memory_there()) / 2:
        raise LeftOutError(f'needs {needed / 2**30:.1f} GiB')
    return needed


def memory_there() -> int:
    """Bytes of the device that JAX may use, or of the machine."""
    found = jax.devices()[0].memory_stats()
    if found and 'bytes_limit' in found:
        return int(found['bytes_limit'])
    return os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


def require_short(seconds: float) -> float:
    """Returns the seconds of a step.

    Raises:
        LeftOutError: they are too many.
    """
    if seconds > LONGEST:
        raise LeftOutError(f'a step of all takes {seconds:.0f} s')
    return seconds


def ready(
    case: Case, count: int, available: int | None = None
) -> tuple[dict[str, Callable[[int], float]], dict[str, int]]:
    """Functions that do steps alone and packed, after their first ones, and the memory of both.

    Raises:
        LeftOutError: the machine is too small.
    """
    made = localized(case.made())
    program, values = compiled(made)
    batches = [program.put(made.train_input.get_next()) for _ in range(count)]
    keys = [program.random_key(row) for row in range(count)]
    memory = {'alone': memory_of(program.train_step, available)}
    # Runs share frozen kernels only where these are equal.
    begun = keys if made.task.adapters is None else keys[:1] * count
    alone = [
        Stepper(program, program.init(begin, values), key, values)
        for begin, key in zip(begun, keys, strict=True)
    ]
    stepping(alone[:1], batches[:1], None)(1)
    require_short(count * stepping(alone[:1], batches[:1], None)(1))
    pack = Pack(program, count, 'always')
    memory['packed'] = memory['alone'] if count == 1 else memory_of(pack._compiled)
    packed = [
        PackedRun(row, program, program.init(begun[row], values), key, values)
        for row, key in enumerate(keys)
    ]
    found = {'alone': stepping(alone, batches, None), 'packed': stepping(packed, batches, pack)}
    for do in found.values():
        do(1)
        require_short(do(1))
    return found, memory


def compare_steps(
    case: Case, count: int, rounds: int, available: int | None = None
) -> dict[str, float]:
    """Prints a row for a model and a number of lanes, and returns its figures."""
    try:
        found, memory = ready(case, count, available)
    except LeftOutError as reason:
        print(f'{case.name:5} {count:3} lanes  left out: {reason}', flush=True)
        return {}
    longest = max(do(1) for do in found.values())
    steps, rounds = max(1, min(10, int(0.5 / longest))), rounds if longest < 1 else 3
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for index in range(rounds):
        for name in sorted(found, reverse=index % 2 == 1):
            seconds[name].append(found[name](steps))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    tokens = count * case.batch_size * case.length
    # In each round, so that what slows the machine for a while counts for both.
    pairs = zip(seconds['alone'], seconds['packed'], strict=True)
    speed_up = statistics.median(alone / packed for alone, packed in pairs)
    print(
        f'{case.name:5} {count:3} lanes  packed {1e3 * medians["packed"]:9.2f} ms'
        f'  alone {1e3 * medians["alone"]:9.2f} ms  {speed_up:6.3f} ×'
        f'  memory {memory["packed"] / 2**20:8.1f} MiB  alone {memory["alone"] / 2**20:7.1f} MiB'
        f'  {tokens / medians["packed"]:8.0f} tokens/s  alone {tokens / medians["alone"]:8.0f}',
        flush=True,
    )
    key = f'{case.name}_{count}'
    return {f'{key}_speed_up': speed_up, f'{key}_mib': memory['packed'] / 2**20}


def trials_per_hour(kind: str, base: Path, name: str, trials: int, seed: int) -> float:
    """Runs a search, and returns its trials per hour.

    Args:
        kind: the value of `--pack`.
        base: a directory for all searches, with their cache of compiled programs.
        name: of a new directory there.
        trials: their number.
        seed: of the search.
    """
    command = [
        *(sys.executable, '-m', 'paxtune.search', '--exp=benchmarks.turnover.experiment.numbers'),
        *(f'--job_log_dir={base / name}', f'--num_trials={trials}', f'--seed={seed}'),
        *('--scheduler=none', '--algorithm=random_search', f'--pack={kind}'),
    ]
    given = {'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(base / 'cache')}
    environment = {k: v for k, v in os.environ.items() if k != 'JAX_COMPILATION_CACHE_DIR'} | given
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f'--pack={kind} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}')
    read = [json.loads(path.read_text()) for path in (base / name).glob('trials/*/trial.json')]
    if len(read) != trials:
        raise RuntimeError(f'--pack={kind}: {len(read)} trials of {trials} have ended')
    times = [[datetime.datetime.fromisoformat(t[at]) for t in read] for at in ('started', 'ended')]
    return trials * 3600 / (max(times[1]) - min(times[0])).total_seconds()


def compare_searches(trials: int, repeats: int) -> dict[str, float]:
    """Runs the searches, prints a row for each kind, and returns their figures."""
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as directory:
        for repeat in range(repeats + 1):
            for kind in KINDS[repeat % 3 :] + KINDS[: repeat % 3]:
                name = f'{repeat}-{kind}'
                rate = trials_per_hour(kind, Path(directory), name, trials, repeat)
                print(f'search {name:7} {rate:7.0f} trials per hour', file=sys.stderr, flush=True)
                if repeat:
                    rates[kind].append(rate)
    found: dict[str, float] = {}
    for kind, each in rates.items():
        ratio = statistics.median(a / b for a, b in zip(each, rates['off'], strict=True))
        rate = statistics.median(each)
        print(f'--pack={kind:4} {rate:8.0f} trials per hour  {ratio:6.3f} of unpacked')
        found[f'{kind}_trials_per_hour'] = rate
        if kind != 'off':
            found[f'{kind}_to_off'] = ratio
    return found


def is_met(result: Mapping[str, float]) -> bool:
    """Returns True where `auto` is not slower than unpacked trials, or did not run."""
    return result.get('auto_to_off', GOAL) >= GOAL


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--only', choices=[case.name for case in CASES], action='append')
    flags.add_argument('--adapters', action='store_true')
    flags.add_argument('--no_searches', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    cases, lanes, rounds = (CASES[:1], LANES[:2], 7) if args.quick else (CASES, LANES, 9)
    result: dict[str, float] = {}
    if args.only:
        cases = [case for case in CASES if case.name in args.only]
    cells = [(case, count) for case in cases for count in lanes]
    if args.adapters:
        cells = [(SMALL_ADAPTERS, 2) if args.quick else (ADAPTERS, 8)]
    for case, count in cells:
        result |= compare_steps(case, count, rounds)
    if not args.no_searches:
        trials = 8 if ON_CPU else 32
        result |= compare_searches(*((6, 1) if args.quick else (trials, 3)))
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in result.items()}))
    return int(args.check and not is_met(result))


if __name__ == '__main__':
    sys.exit(main())
