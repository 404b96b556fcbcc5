"""Training from Python in processes that JAX itself joins: for `tests.servers.processes`."""

import argparse
import os
import signal

import jax

from tests.factories import multi_process as joined
from trainer import command
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run

_AT = 4


def main() -> None:
    """Trains; a cluster scheduler announces the end to process 1 before its fourth step."""
    flags: argparse.ArgumentParser = command.parser(__doc__)
    command.add_process_flags(flags)
    flags.add_argument('--job_log_dir')
    flags.add_argument('--steps_per_execution', type=int)
    args = flags.parse_args()
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(args.coordinator, args.num_processes, args.process_id)
    asked = 0

    def told() -> bool:
        nonlocal asked
        asked += 1
        if asked == _AT and args.process_id == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    made = joined.Text()
    made.rebind({'train.num_train_steps': 4000, 'train.checkpoints.every': 1000})
    made.rebind({'train.evaluation.every': 4000, 'train.summary_interval_steps': 500})
    made.rebind({'train.steps_per_execution': args.steps_per_execution})
    try:
        list(run(made, args.job_log_dir, told))
    except Interrupted as stopped:
        print(f'stopped at step {stopped.step}')


if __name__ == '__main__':
    main()
