"""Memory that was freed goes back to the operating system."""

import ctypes
import sys
from pathlib import Path

import pytest

from trainer.runtime import heap

MIB = 2**20


def resident() -> int:
    return int(Path('/proc/self/statm').read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != 'linux', reason='glibc alone keeps freed memory')
def test_trim_returns_freed_memory() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    # The last of these small blocks keeps the end of the heap in use.
    *blocks, last = [libc.malloc(64 * 1024) for _ in range(1024)]
    for block in blocks:
        ctypes.memset(block, 1, 64 * 1024)
    for block in blocks:
        libc.free(block)
    before = resident()
    heap.trim()
    returned = before - resident()
    libc.free(last)  # This alone returns memory, too.
    assert returned > 32 * MIB
