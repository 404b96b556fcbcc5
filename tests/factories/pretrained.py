"""Tiny models of the real `transformers`, and the library itself in its own environment."""

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / 'trainer' / 'pretrained'
SCRIPT = FOLDER / 'reference.py'


def directory(name: str) -> Path:
    """The directory that `transformers` saved for a model of `reference.py`, such as 'llama_2'."""
    return FOLDER / 'fixtures' / name


@functools.cache
def reference(name: str) -> dict[str, np.ndarray]:
    """The inputs and logits of a model, named as in `reference.py`."""
    with np.load(directory(name) / 'reference.npz') as arrays:
        return dict(arrays)


def calls(name: str) -> list[dict[str, np.ndarray]]:
    """The inputs and the logits of each call of a model, without their numbers."""
    arrays = reference(name)
    count = sum(key.startswith('logits_') for key in arrays)
    return [
        {key.removesuffix(f'_{i}'): x for key, x in arrays.items() if key.endswith(f'_{i}')}
        for i in range(count)
    ]


def library_python() -> str:
    """The Python of the environment of `transformers`; skips the test where there is none."""
    if not (python := os.environ.get('TRANSFORMERS_PYTHON')):
        pytest.skip('TRANSFORMERS_PYTHON names no Python with transformers')
    return python


def differences(directories: Sequence[tuple[Path, str | Path]]) -> list[float]:
    """The largest difference of a logit that `transformers` computes from each directory.

    Args:
        directories: each with the name of the model whose logits it has to have, or with a file
            of logits.
    """
    pairs = [
        str(x)
        for each, name in directories
        for x in (each, name if isinstance(name, Path) else directory(name) / 'reference.npz')
    ]
    return [float(line) for line in _printed('compare', *pairs).splitlines()]


def write_smollm2(place: Path) -> dict[str, np.ndarray]:
    """Writes the directory of SmolLM2-135M-Instruct, and returns texts, their ids and logits."""
    _printed('smollm2', str(place))
    with np.load(place / 'reference.npz') as arrays:
        return dict(arrays)


def _printed(*words: str) -> str:
    done = subprocess.run([library_python(), str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
