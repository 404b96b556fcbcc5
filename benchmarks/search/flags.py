"""The flags that benchmarks of searches share."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.search import tables

ROOT = Path(__file__).parents[2]


def parser(text: str) -> argparse.ArgumentParser:
    """A parser of `--quick`, `--data_dir` and `--cache_dir`; `text` is the help of the script."""
    flags = argparse.ArgumentParser(description=text)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--data_dir', type=Path, default=ROOT.parent / 'shared' / 'data')
    flags.add_argument('--cache_dir', type=Path, default=Path('~/.cache/paxtune/search_quality'))
    return flags


def parsed(flags: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the flags, makes the folder of cells, and names tables that are not there."""
    args = flags.parse_args(argv)
    # A crew ends with the script.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args.cache_dir = args.cache_dir.expanduser().resolve()
    args.data_dir = args.data_dir.resolve()
    args.cache_dir.mkdir(parents=True, exist_ok=True)
    for name in tables.missing(args.data_dir):
        print(f'left out: {name}, which is not in {args.data_dir / "taskset"}')
    return args
