"""Every benchmark runs, shrunk, and ends with its result."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.servers.processes import ROOT, environment

# The others measure how long something takes.
CHECKED = ['chaos', 'reference_loss']


@pytest.mark.slow
@pytest.mark.parametrize('script', sorted((ROOT / 'benchmarks').glob('*.py')), ids=lambda p: p.stem)
def test_each_benchmark_prints_a_result(script: Path) -> None:
    flags = ['--quick', *(['--check'] if script.stem in CHECKED else [])]
    done = subprocess.run(
        [sys.executable, str(script), *flags],
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
