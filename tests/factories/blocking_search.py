"""A search of a function that never ends its first trial, as a process of its own to be killed."""

import sys
import time
from pathlib import Path
from typing import Any

from paxtune.api import tune
from tests.factories.function_studies import PARALLEL


def block(x: float) -> Any:
    print(x, flush=True)
    time.sleep(600.0)


if __name__ == '__main__':
    tune(block, job_log_dir=Path(sys.argv[1]), **PARALLEL)
