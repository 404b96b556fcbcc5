"""Prints how long a step of an experiment takes: in each of several processes, if there are any.

python -m tests.factories.step_times [--coordinator=… --num_processes=… --process_id=…]
"""

import argparse

from tests.factories import multi_process as joined
from trainer import command
from trainer.program.costs import step_cost
from trainer.runtime import processes


def main() -> None:
    flags = argparse.ArgumentParser()
    command.add_process_flags(flags)
    processes.start(flags.parse_args())
    with processes.together():
        print(f'{step_cost(joined.Text())["step_seconds"]!r}', flush=True)


if __name__ == '__main__':
    main()
