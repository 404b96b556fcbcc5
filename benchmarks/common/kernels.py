"""Time of a GPU's kernels, by what they compute."""

import glob
import tempfile
from collections import defaultdict
from collections.abc import Callable

import jax

KINDS = {
    'attention': ('sdpa', 'flash', 'fmha', 'cudnn_generated'),
    'matrix products': ('gemm', 'nvjet', 'cutlass', 'cublas', 'splitk'),
    'copies': ('memcpy', 'memset'),
}
"""Parts of the names of kernels. All others are elementwise operations, sums and moves of data."""


def kind_of(kernel: str) -> str:
    """Returns the kind of a kernel.

    Example:
        >>> kind_of('nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT')
        'matrix products'
        >>> kind_of('loop_multiply_fusion_12')
        'others'
    """
    name = kernel.lower()
    for kind, parts in KINDS.items():
        if any(part in name for part in parts):
            return kind
    return 'others'


def kernel_seconds(run: Callable[[], object]) -> dict[str, float]:
    """Profiles a function, and returns the seconds of each kernel on the first GPU.

    Args:
        run: returns after its work on the device.
    """
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            run()
        (path,) = glob.glob(f'{directory}/**/*.xplane.pb', recursive=True)
        profile = jax.profiler.ProfileData.from_file(path)
    seconds: dict[str, float] = defaultdict(float)
    for plane in profile.planes:
        if plane.name != '/device:GPU:0':
            continue
        for line in plane.lines:
            if line.name.startswith('Stream'):
                for event in line.events:
                    seconds[event.name] += event.duration_ns / 1e9
    return seconds
