"""Commands run as processes: alone, to be killed or interrupted, or several that join."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.servers.ports import unused_port

ROOT = Path(__file__).parents[2]


def environment(optimizes: bool = True) -> dict[str, str]:
    """The environment of a command.

    Args:
        optimizes: it compiles as a user's command does; False where only its output matters.
    """
    disabled = str(not optimizes).lower()
    return {**os.environ, 'PYTHONPATH': str(ROOT), 'JAX_DISABLE_MOST_OPTIMIZATIONS': disabled}


def command(
    *arguments: str, kill: str | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m …`, or has `tests.servers.killer` run it."""
    killer = ['tests.servers.killer', kill] if kill else []
    return subprocess.run(
        [sys.executable, '-m', *killer, *arguments],
        env=environment(),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def passed(done: subprocess.CompletedProcess[str]) -> str:
    """The output of a command that must have succeeded."""
    assert done.returncode == 0, f'exit {done.returncode}\n{done.stdout}\n{done.stderr}'
    return done.stdout


class Ended(NamedTuple):
    """The result of a process.

    Attributes:
        code: its exit code; -N where signal N ended it.
        out: what it printed, without what gloo says.
        err: its messages.
        seconds: from the end of the first process of the job to its own.
    """

    code: int
    out: str
    err: str
    seconds: float


def job(
    *arguments: str,
    kill: Mapping[int, str] = {},
    own: Mapping[int, Sequence[str]] = {},
    processes: int = 2,
    devices: int = 2,
    timeout: float = 300,
) -> list[Ended]:
    """Runs `python -m …` in several processes that join each other, and waits for all.

    Args:
        arguments: the module and its flags.
        kill: what `tests.servers.killer` does, by process.
        own: flags that only this process has.
        processes: how many.
        devices: simulated devices of each.
        timeout: seconds, after which all are killed.
    """
    env = environment()
    env |= {
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
    }
    joining = [f'--coordinator=localhost:{unused_port()}', f'--num_processes={processes}']
    module, *others = arguments
    with tempfile.TemporaryDirectory() as directory:
        running, files = [], []
        for i in range(processes):
            killer = ['tests.servers.killer', kill[i]] if i in kill else []
            flags = [] if processes == 1 else [*joining, f'--process_id={i}']
            command = [sys.executable, '-m', *killer, module, *flags, *others, *own.get(i, ())]
            files.append([Path(directory, f'{i}.{name}') for name in ('out', 'err')])
            with files[-1][0].open('w') as out, files[-1][1].open('w') as err:
                running.append(subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=err))
        ended = _wait(running, timeout)
        texts = [[file.read_text() for file in each] for each in files]
    return [
        Ended(process.returncode, _without_gloo(out), err, ended[i] - min(ended.values()))
        for i, (process, (out, err)) in enumerate(zip(running, texts, strict=True))
    ]


def on_devices(script: str, devices: int = 8) -> str:
    """Runs a script with simulated devices and returns its output; it must succeed."""
    flags = f'--xla_force_host_platform_device_count={devices}'
    done = subprocess.run(
        [sys.executable, '-c', script],
        env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def all_passed(ended: Sequence[Ended]) -> str:
    """Returns the output of a job's first process; all processes must have succeeded."""
    for each in ended:
        assert each.code == 0, f'exit {each.code}\n{each.out}\n{each.err}'
    return ended[0].out


def _wait(running: Sequence[subprocess.Popen[bytes]], timeout: float) -> dict[int, float]:
    """When each ended."""
    ended: dict[int, float] = {}
    began = time.monotonic()
    while len(ended) < len(running):
        now = time.monotonic()
        for i, process in enumerate(running):
            if i not in ended and process.poll() is not None:
                ended[i] = now
        if now - began > timeout:
            for process in running:
                process.kill()
        time.sleep(0.05)
    return ended


def _without_gloo(text: str) -> str:
    # It writes to the standard output, from several threads that cut each other's lines.
    marks = ('[Gloo]', 'is connected', 'peer ranks')
    lines = [line for line in text.splitlines() if not any(mark in line for mark in marks)]
    return '\n'.join(line for line in lines if line.strip(' 0123456789'))
