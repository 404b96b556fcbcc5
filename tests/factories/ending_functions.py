"""Functions that end in any way, for workers, which import them."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

WAYS: dict[str, Callable[[], int]] = {
    'returns': lambda: 0,
    'sys.exit(0)': lambda: sys.exit(0),
    'sys.exit(130)': lambda: sys.exit(130),
    'interrupt': lambda: _raise(KeyboardInterrupt()),
    'cancelled': lambda: _raise(asyncio.CancelledError()),
    'os._exit(0)': lambda: os._exit(0),
    'os._exit(2)': lambda: os._exit(2),
    'os._exit(75)': lambda: os._exit(75),
    'os._exit(76)': lambda: os._exit(76),
    'os._exit(143)': lambda: os._exit(143),
    'input': lambda: int(input()),
    'leaves': lambda: _leave(),
}


def ends(way: str) -> dict[str, float]:
    return {'objective': 1.0, 'child': WAYS[way]()}


def _raise(error: BaseException) -> int:
    raise error


def _leave() -> int:
    """Leaves a thread, a process, handlers of signals and another directory."""
    threading.Thread(target=time.sleep, args=[100]).start()
    if not (child := os.fork()):
        time.sleep(200)
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.chdir('/')
    return child
