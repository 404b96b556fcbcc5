import dataclasses
import glob
import os
import shutil
import subprocess
from collections.abc import Sequence

ALLOCATOR = {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'}
"""Variables with which a worker starts, unless the user sets them.

XLA allocates the intermediate arrays of each step on a CPU anew. With huge pages, the kernel maps
them by 512 times fewer page faults.
"""

_MEMORY_OF_A_SHARED_GPU = 0.8  # The rest is for CUDA itself, in each process.


@dataclasses.dataclass(frozen=True)
class Place:
    """A share of the machine, for one worker.

    Attributes:
        cores: the cores that it computes on, by number; empty for any.
        environment: variables that make its accelerators visible.
    """

    cores: tuple[int, ...]
    environment: dict[str, str]


def places(workers: int) -> list[Place]:
    """Divides this machine between workers, each with as many cores as any other.

    The remainder is idle: bits depend on the number of threads, and must not depend on the worker.
    """
    shares = zip(divided(cores(), workers), _environments(workers), strict=True)
    return [Place(*share) for share in shares]


def divided(things: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """Gives each part equally many things; one, in turn, where there are too few.

    Example:
        >>> divided([0, 1, 2, 3, 4], 2), divided([7], 2)
        ([(0, 1), (2, 3)], [(7,), (7,)])
    """
    share = len(things) // parts
    if not share:
        return [(things[i % len(things)],) if things else () for i in range(parts)]
    return [tuple(things[i * share : (i + 1) * share]) for i in range(parts)]


def pin(cores: Sequence[int]) -> None:
    """Restricts this process to some cores. It must come before JAX starts its threads."""
    if cores and hasattr(os, 'sched_setaffinity'):  # Not on macOS.
        os.sched_setaffinity(0, cores)


def leave_accelerators_to_workers() -> None:
    """Makes JAX compute on the CPU in this process, before it finds an accelerator.

    It would hold memory of a GPU, and all of a TPU, which the workers need.
    """
    import jax

    jax.config.update('jax_platforms', 'cpu')


def cores() -> list[int]:
    """The cores that this process may use; none if that is unknown, as on macOS."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []


def _environments(workers: int) -> list[dict[str, str]]:
    for variable, found in (('CUDA_VISIBLE_DEVICES', _gpus()), ('TPU_VISIBLE_CHIPS', _tpus())):
        # Set and empty: a scheduler has given this process none.
        visible = os.environ.get(variable)
        devices = found if visible is None else [each for each in visible.split(',') if each]
        if devices:
            shares = divided(range(len(devices)), workers)
            return [
                {variable: ','.join(devices[i] for i in share)} | _memory(workers, len(devices))
                for share in shares
            ]
    return [{} for _ in range(workers)]


def _memory(workers: int, devices: int) -> dict[str, str]:
    # JAX allocates most of the memory of a GPU at once: workers that share one must share that.
    if workers <= devices:
        return {}
    sharing = -(-workers // devices)
    share = f'{_MEMORY_OF_A_SHARED_GPU / sharing:.3f}'
    # With both names set, JAX would leave the GPU out.
    return {'XLA_CLIENT_MEM_FRACTION': share, 'XLA_PYTHON_CLIENT_MEM_FRACTION': ''}


def _gpus() -> list[str]:
    if shutil.which('nvidia-smi') is None:
        return []
    listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True, check=False)
    lines = [line for line in listed.stdout.splitlines() if line.startswith('GPU ')]
    return [str(i) for i in range(len(lines))]


def _tpus() -> list[str]:
    chips = glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*')
    return [str(i) for i in range(len(chips))]
