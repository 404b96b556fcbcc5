"""The code, commands and links of docs/performance.md work."""

import os
import re
import subprocess
import sys

import pytest

from tests.documents import pages_of

(PATH,) = pages_of(__file__)
DOCUMENT = PATH.read_text()


@pytest.mark.pax('XLA flags and `LIBTPU_INIT_ARGS`')
def test_flags_of_xla_are_as_the_document_says() -> None:
    rows = re.findall(r'^\| `(--xla_gpu_\w+)` \|.*\| (known|gone)\b.*\|$', DOCUMENT, re.MULTILINE)
    flags = dict(rows)
    assert len(flags) == 10
    # Unknown flags end the process, with a list of them.
    given = ' '.join(f'{flag}={"" if "command_buffer" in flag else 1}' for flag in flags)
    done = subprocess.run(
        [sys.executable, '-c', 'import jax; jax.devices()'],
        env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    (unknown,) = re.findall(r'Unknown flags in XLA_FLAGS: (.*)', done.stderr)
    gone = {flag for flag, state in flags.items() if state == 'gone'}
    assert {word.split('=')[0] for word in unknown.split()} == gone
