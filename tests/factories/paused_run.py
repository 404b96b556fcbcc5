"""A run of several processes that the first pauses at a measurement: see `processes.job`."""

import argparse

from tests.factories import multi_process as joined
from trainer import command
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run
from trainer.runtime import processes


def main() -> None:
    """Trains until each measurement, of which only the first process says that it is enough."""
    flags: argparse.ArgumentParser = command.parser(__doc__)
    command.add_process_flags(flags)
    flags.add_argument('--job_log_dir')
    args = flags.parse_args()
    processes.start(args)
    told = []
    for at in (4, 4, 8, 12):
        heard: list[int] = []

        def enough(at: int = at, heard: list[int] = heard) -> bool:
            return processes.is_first() and heard[-1:] == [at]

        try:
            for each in run(joined.Text(), args.job_log_dir, enough):
                heard.append(each.step)
                spent = each.metrics
            told.append(f'ended at {heard[-1]}')
        except Interrupted as paused:
            told.append(f'paused at {paused.step}')
    print(*told, spent['spent_tokens'], spent['spent_seconds'], sep=', ')


if __name__ == '__main__':
    main()
