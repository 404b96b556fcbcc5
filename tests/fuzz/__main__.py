"""Sends hostile requests to a service, and sees whether every reader of its studies works.

    python -m tests.fuzz --requests=10000 [--role=work] [--seed=0]

Prints the replies by status code, and `RESULT {json}`. Exit codes: 0 all works, 1 something failed.
"""

import argparse
import contextlib
import json
import logging
import sys
import time
from collections.abc import Sequence

from paxtune.service.schema import Role
from tests.fuzz.service import FaultError, FuzzedService


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    flags = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    flags.add_argument('--requests', type=int, default=1000, help='of each role')
    flags.add_argument('--role', choices=[each.name.lower() for each in Role], help='only this one')
    flags.add_argument('--seed', type=int, default=0)
    args = flags.parse_args(argv)
    logging.disable(logging.CRITICAL)
    faults, began = 0, time.perf_counter()
    for role in Role:
        if args.role not in (None, role.name.lower()):
            continue
        with contextlib.closing(FuzzedService(role, args.seed)) as service:
            try:
                service.attack(args.requests)
            except FaultError as error:
                faults += 1
                print(error, repr(error.__cause__), sep='\n')
            print(role.name.lower(), dict(sorted(service.counts.items())))
    seconds = round(time.perf_counter() - began, 1)
    print(f'RESULT {json.dumps({"faults": faults, "seconds": seconds})}')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
