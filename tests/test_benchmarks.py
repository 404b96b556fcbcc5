"""Short benchmarks run, shrunk, and end with their results.

`tests/benchmarks/test_scripts.py` imports all, and `tests/benchmarks/test_gpu.py` runs those of a
GPU. A change of a longer one is tried with `--quick`.
"""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.servers.processes import ROOT, environment

CHECKED = ['chaos', 'long_context', 'goodput', 'reference_loss']
"""Benchmarks whose goal does not depend on the speed of the machine."""

SHORT = [
    *CHECKED,
    'function_start',
    'large_study',
    'optimum_at_bound',
    'periodic_stack',
    'refusal_time',
]
"""Benchmarks that take less than half a minute of processor time."""


@pytest.mark.slow(reason='chaos waits for leases to end')
@pytest.mark.parametrize('name', SHORT)
def test_a_benchmark_prints_a_result(name: str) -> None:
    flags = ['--quick', *(['--check'] if name in CHECKED else [])]
    done = subprocess.run(
        [sys.executable, f'benchmarks/{name}.py', *flags],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
    kind, _, result = done.stdout.splitlines()[-1].partition(' ')
    assert kind == 'RESULT'
    numbers = jax.tree.leaves(json.loads(result))
    assert numbers
    assert np.isfinite(numbers).all(), numbers
