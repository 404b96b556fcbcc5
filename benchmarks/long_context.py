"""Memory of a training step on long rows, whose positions devices share.

    python benchmarks/long_context.py --check

A language model of 4 layers (width 512, 8 heads of 64, float32) trains on rows of 32,768 positions.
1, 2, 4 or 8 simulated devices of the mesh axis `sequence` share each row. Steps are compiled, and
never run. The memory of a device is that of the compiled step, without parameters and optimizer
state. One device has the logits of all pairs of positions; several use ring attention. Then rows of
other lengths are compiled for 8 devices.

Goals: 8 devices need at most 0.3 of the memory of 2 on each, where 0.25 is ideal; twice as long
rows need at most 2.1 of it. `--quick` compiles for 2 and 8 devices, and rows of half the length for
8. `--check` exits with 1 where a goal is missed.
"""

import argparse
import itertools
import json
import math
import os
import sys
from pathlib import Path

os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'
os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from trainer.layers import (  # noqa: E402
    Attention,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import Learner  # noqa: E402
from trainer.mesh import Mesh  # noqa: E402
from trainer.program.program import Program  # noqa: E402
from trainer.tasks import LanguageModelTask  # noqa: E402

DEVICES_GOAL, LENGTH_GOAL = 0.3, 2.1
MIB = 2**20


def task() -> LanguageModelTask:
    """The task of all rows, with a small vocabulary: logits of tokens hide no other memory."""
    block = TransformerBlock(Attention(8, head_dim=64), FeedForward(2048))
    stack = Stack([block], repeats=4, scan='always')
    model = TransformerLm(embedding=Embedding(256, 512), stack=stack)
    return LanguageModelTask(model=model, learner=Learner(learning_rate=0.01))


def memory(length: int, devices: int) -> float:
    """MiB of a step on each device, without the state."""
    dtypes = {'ids': np.int32, 'labels': np.int32, 'weights': np.float32}
    spec = {name: jax.ShapeDtypeStruct((1, length), dtype) for name, dtype in dtypes.items()}
    mesh = Mesh(data=1, sequence=devices).make(jax.devices()[:devices])
    program = Program(task(), mesh, spec)
    state = jax.tree.leaves(program.abstract_state)
    whole = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in state)
    return (program.device_memory_bytes() - whole) / MIB


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    length, shares, lengths = 32768, [1, 2, 4, 8], [16384, 65536]
    if args.quick:
        shares, lengths = [2, 8], [16384]
    found = {}
    print('positions  devices  MiB of each')
    for each, devices in [*((length, n) for n in shares), *((other, 8) for other in lengths)]:
        found[each, devices] = memory(each, devices)
        print(f'{each:9,}  {devices:7}  {found[each, devices]:11,.1f}', flush=True)
    by_devices = found[length, 8] / found[length, 2]
    pairs = itertools.pairwise(sorted((length, *lengths)))
    by_length = max(found[long, 8] / found[short, 8] for short, long in pairs)
    print(f'8 devices need {by_devices:.3f} of the memory of 2, twice the length {by_length:.2f}')
    result = {'by_devices': round(by_devices, 3), 'by_length': round(by_length, 3)}
    print('RESULT ' + json.dumps(result))
    return int(args.check and (by_devices > DEVICES_GOAL or by_length > LENGTH_GOAL))


if __name__ == '__main__':
    sys.exit(main())
