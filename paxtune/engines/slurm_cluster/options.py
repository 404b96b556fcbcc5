"""Options of `sbatch` for the jobs of workers."""

import re
from collections.abc import Mapping, Sequence

from trainer.symbolic.errors import UserError

# The engine gives some itself; others hide jobs, or the number of their processes.
_REFUSED = (
    *('array', 'error', 'job-name', 'ntasks', 'open-mode', 'output', 'requeue', 'signal', 'wrap'),
    *('clusters', 'gid', 'no-requeue', 'parsable', 'quiet', 'test-only', 'uid', 'wait'),
    *('ntasks-per-core', 'ntasks-per-gpu', 'ntasks-per-socket'),
)

_NAME = re.compile('[a-z][a-z-]+')

_TIME = re.compile(
    r'(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+)(?::(?P<seconds>\d+))?)?'
    r'|(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)|(?P<only>\d+))'
)


def parse(texts: Sequence[str]) -> dict[str, str]:
    """Parses `name=value` texts, and names alone, of options of `sbatch`.

    Raises:
        UserError: an option cannot be given, or there is no time limit.

    Example:
        >>> parse(['gres=gpu:1', 'time=04:00:00', 'exclusive'])
        {'gres': 'gpu:1', 'time': '04:00:00', 'exclusive': ''}
    """
    found = {}
    for text in texts:
        name, _, value = text.partition('=')
        found[name.replace('_', '-')] = value
    return checked(found)


def checked(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options; raises UserError as `parse`."""
    for name, value in options.items():
        if name in _REFUSED:
            raise UserError(f'--slurm {name}=…: the engine gives or excludes this option of sbatch')
        # Each is a line of a shell script.
        if not _NAME.fullmatch(name) or not value.isprintable():
            raise UserError(
                f'--slurm {name}={value!r}: expected the long name of an option of sbatch, and its '
                'value on one line'
            )
    if 'time' not in options:
        raise UserError(
            '--slurm: expected time=HH:MM:SS, the limit of a job. Shortly before it, a worker '
            'saves its trial, and its job queues again'
        )
    minutes(options['time'])
    processes(options)
    return dict(options)


def processes(options: Mapping[str, str]) -> int:
    """Computes the number of processes of a job, which are one worker.

    Example:
        >>> processes({'nodes': '2', 'ntasks-per-node': '8'})
        16
    """
    counts = [options.get(name, '1') for name in ('nodes', 'ntasks-per-node')]
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise UserError('--slurm: expected nodes and ntasks-per-node of at least 1')
    return int(counts[0]) * int(counts[1])


def minutes(time: str) -> int:
    """Computes the minutes of a time limit in any form of `sbatch`, rounded up.

    Raises:
        UserError: it has another form.

    Example:
        >>> [minutes(each) for each in ('90', '04:00:00', '10:01', '1-12', '0-01:30')]
        [90, 240, 11, 2160, 90]
    """
    found = _TIME.fullmatch(time)
    if found is None:
        raise UserError(f'--slurm time={time}: expected HH:MM:SS, days-HH:MM:SS, or minutes')
    part = {name: int(value or 0) for name, value in found.groupdict().items()}
    seconds = (part['days'] * 24 + part['hours'] + part['h']) * 3600
    seconds += (part['minutes'] + part['m'] + part['only']) * 60 + part['seconds'] + part['s']
    return max(1, -(-seconds // 60))
