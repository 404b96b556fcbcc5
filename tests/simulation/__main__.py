"""Simulates the service, its workers and people under overlapping faults.

    python -m tests.simulation --first=0 --seeds=200
    python -m tests.simulation --trace=SEED [--shrink]

Prints the violations, and `RESULT {json}` with seeds, faults and violations. Exit codes: 0 no
violation, 1 at least one.
"""

import argparse
import collections
import dataclasses
import json
import sys
import time
from collections.abc import Iterable

from tests.simulation.faults import Settings
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.shrinking import shrink
from tests.simulation.simulation import Outcome, simulate

_SHOWN = 3


def main() -> int:
    """Runs the command."""
    flags = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    flags.add_argument('--first', type=int, default=0, help='the first seed')
    flags.add_argument('--seeds', type=int, default=20, help='the number of seeds')
    flags.add_argument('--trace', type=int, metavar='SEED', help='print the events of one seed')
    flags.add_argument('--shrink', action='store_true', help='of --trace: the fewest faults')
    flags.add_argument('--scenario', help='only this one', choices=[s.name for s in SCENARIOS])
    flags.add_argument('--between', type=float, help='seconds between timed faults')
    args = flags.parse_args()
    settings = Settings()
    if args.between is not None:
        settings = dataclasses.replace(settings, between=args.between)
    scenario = next((each for each in SCENARIOS if each.name == args.scenario), None)
    began = time.perf_counter(), time.process_time()
    if args.trace is not None:
        outcome = simulate(args.trace, settings, scenario=scenario)
        if args.shrink and outcome.violations:
            outcome = _shrunk(outcome, settings, scenario)
        print(*outcome.trace, sep='\n')
        outcomes = [outcome]
    else:
        seeds = range(args.first, args.first + args.seeds)
        outcomes = [_seen(simulate(seed, settings, scenario=scenario)) for seed in seeds]
    return _report(outcomes, began)


def _shrunk(outcome: Outcome, settings: Settings, scenario: Scenario | None) -> Outcome:
    (kind, _), *_ = outcome.violations

    def again(names: Iterable[str]) -> Outcome:
        return simulate(outcome.seed, settings, scenario=scenario, allowed=frozenset(names))

    return again(shrink(outcome.faults, lambda names: kind in again(names).kinds))


def _seen(outcome: Outcome) -> Outcome:
    """Prints the violations of a seed; its trace is not kept."""
    for kind, text in outcome.violations[:_SHOWN]:
        print(f'seed {outcome.seed} ({outcome.scenario}): {kind}: {text}', flush=True)
    outcome.trace.clear()
    return outcome


def _report(outcomes: list[Outcome], began: tuple[float, float]) -> int:
    faults: collections.Counter[str] = collections.Counter()
    violations: dict[str, list[int]] = {}
    for outcome in outcomes:
        faults += outcome.counts
        for kind in sorted(outcome.kinds):
            violations.setdefault(kind, []).append(outcome.seed)
    result = {
        'seeds': len(outcomes),
        'faults': sum(faults.values()),
        'kinds': dict(faults),
        'violations': violations,
        'simulated_seconds': round(sum(each.seconds for each in outcomes)),
        'seconds': round(time.perf_counter() - began[0], 1),
        'cpu_seconds': round(time.process_time() - began[1], 1),
    }
    print(f'RESULT {json.dumps(result)}')
    return 1 if violations else 0


if __name__ == '__main__':
    sys.exit(main())
