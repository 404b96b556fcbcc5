import platform
import subprocess
import sys

import pytest

_COUNT = """
import resource
import numpy as np
from paxtune.algorithms.gp.blas import one_blas_thread

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def allocate():
    arrays = [np.ones(2**17) for _ in range(4)]

with one_blas_thread():
    allocate()
    before = page_faults()
    for _ in range(20):
        allocate()
    print(page_faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='another allocator')
def test_new_arrays_take_the_memory_of_freed_ones():
    done = subprocess.run(
        [sys.executable, '-c', _COUNT], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1000  # Otherwise there are 20,000, of 4 kB each.
