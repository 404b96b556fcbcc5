"""Simulates the service, its workers and people under overlapping faults.

    python -m tests.simulation --first=0 --seeds=200 [--jobs=2]
    python -m tests.simulation --first=0 --faults=10000
    python -m tests.simulation --trace=SEED [--shrink]

Prints the violations, and `RESULT {json}` with seeds, faults and violations. Exit codes: 0 no
violation, 1 at least one.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.simulation.faults import Settings
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.simulation import Outcome, shrink, simulate

_SHOWN, _BATCH = 3, 8


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    flags = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    flags.add_argument('--first', type=int, default=0, help='the first seed')
    flags.add_argument('--seeds', type=int, default=20, help='the number of seeds')
    flags.add_argument('--faults', type=int, help='seeds until this number of faults has happened')
    flags.add_argument('--jobs', type=int, default=1, help='the number of processes')
    flags.add_argument('--trace', type=int, metavar='SEED', help='print the events of one seed')
    flags.add_argument('--shrink', action='store_true', help='of --trace: the fewest faults')
    flags.add_argument('--scenario', help='only this one', choices=[s.name for s in SCENARIOS])
    flags.add_argument('--between', type=float, help='seconds between timed faults')
    flags.add_argument('--until_violation', action='store_true', help='end at the first one')
    args = flags.parse_args(argv)
    settings = Settings()
    if args.between is not None:
        settings = dataclasses.replace(settings, between=args.between)
    scenario = next((each for each in SCENARIOS if each.name == args.scenario), None)
    began = time.perf_counter()
    if args.trace is not None:
        outcome = simulate(args.trace, settings, scenario=scenario)
        if args.shrink and outcome.violations:
            outcome = _shrunk(outcome, settings, scenario)
        print(*outcome.trace, sep='\n')
        outcomes = [outcome]
    else:
        outcomes = []
        for outcome in _simulated(args, functools.partial(_one, settings, scenario)):
            outcomes.append(outcome)
            _show(outcome)
            _show_progress(outcomes)
            if args.until_violation and outcome.violations:
                break
    return _report(outcomes, began)


def _one(settings: Settings, scenario: Scenario | None, seed: int) -> Outcome:
    outcome = simulate(seed, settings, scenario=scenario)
    outcome.trace.clear()  # It is long.
    return outcome


def _simulated(args: argparse.Namespace, one: Callable[[int], Outcome]) -> Iterator[Outcome]:
    """Simulates seeds in order, in several processes, until there are as many as asked for."""
    if args.faults is None:
        batches: Iterable[Sequence[int]] = [range(args.first, args.first + args.seeds)]
    else:
        size = _BATCH * args.jobs
        batches = (range(first, first + size) for first in itertools.count(args.first, size))
    happened = 0
    with contextlib.ExitStack() as held:
        mapped: Callable[..., Iterator[Outcome]] = map
        if args.jobs > 1:
            mapped = held.enter_context(concurrent.futures.ProcessPoolExecutor(args.jobs)).map
        for batch in batches:
            for outcome in mapped(one, batch):
                happened += sum(outcome.counts.values())
                yield outcome
            if args.faults is not None and happened >= args.faults:
                return


def _shrunk(outcome: Outcome, settings: Settings, scenario: Scenario | None) -> Outcome:
    (kind, _), *_ = outcome.violations

    def again(names: Iterable[str]) -> Outcome:
        return simulate(outcome.seed, settings, scenario=scenario, allowed=frozenset(names))

    return again(shrink(outcome.faults, lambda names: kind in again(names).kinds))


def _show(outcome: Outcome) -> None:
    for kind, text in outcome.violations[:_SHOWN]:
        print(f'seed {outcome.seed} ({outcome.scenario}): {kind}: {text}')
    if outcome.violations:
        again = f'python -m tests.simulation --scenario="{outcome.scenario}" --trace={outcome.seed}'
        print(f'to repeat it: {again} --shrink', flush=True)


def _show_progress(outcomes: Sequence[Outcome]) -> None:
    if len(outcomes) % _BATCH:
        return
    happened = sum(sum(each.counts.values()) for each in outcomes)
    failed = sum(bool(each.violations) for each in outcomes)
    text = f'{len(outcomes)} seeds, {happened} faults, {failed} seeds with violations'
    print(f'\r{text}', end='', file=sys.stderr, flush=True)


def _report(outcomes: list[Outcome], began: float) -> int:
    faults: collections.Counter[str] = collections.Counter()
    violations: dict[str, list[int]] = {}
    for outcome in outcomes:
        faults += outcome.counts
        for kind in sorted(outcome.kinds):
            violations.setdefault(kind, []).append(outcome.seed)
    print(file=sys.stderr)
    result = {
        'seeds': len(outcomes),
        'faults': sum(faults.values()),
        'kinds': dict(faults),
        'violations': violations,
        'simulated_seconds': round(sum(each.seconds for each in outcomes)),
        'seconds': round(time.perf_counter() - began, 1),
        'cpu_seconds': round(sum(os.times()[:4]), 1),
    }
    print(f'RESULT {json.dumps(result)}')
    return 1 if violations else 0


if __name__ == '__main__':
    sys.exit(main())
