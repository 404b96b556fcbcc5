"""Checks of data that read them: shares of hosts, vocabularies."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping

from trainer.inputs.base import Batch, EndOfData, Input, host_share
from trainer.symbolic.errors import UserError

HOSTS = (2, 3, 4)
"""Numbers of hosts that are simulated."""

_TOLERANCE = 0.01
"""Data may hold some examples more than once; shares that overlap are mostly alike."""


def check_hosts(path: str, data: Input, num_batches: int) -> str:
    """Reads an input as several hosts would, one after another.

    Args:
        path: where the input is, for messages.
        data: an input that is prepared. It is not read itself.
        num_batches: how many each host reads.

    Returns:
        What was found, in words.

    Raises:
        UserError: hosts read the same examples, or an evaluation does not end for all together.
    """
    for hosts in HOSTS:
        try:
            shares = [_read(data, hosts, host, num_batches) for host in range(hosts)]
        except UserError as error:
            raise UserError(f'{path}: as one of {hosts} hosts: {error}') from error
        ends = {len(share) for share in shares}
        if len(ends) > 1:
            raise UserError(
                f'{path}: of {hosts} hosts some end after {min(ends)} batches and others do not: '
                'all must have as many'
            )
        rows = [list(_rows(share)) for share in shares]
        together = list(itertools.chain(*rows))
        # As often as one host alone comes upon the same example again.
        alone = list(_rows(_read(data, 1, 0, num_batches * hosts)))
        allowed = max(0, len(alone) - len(set(alone))) + _TOLERANCE * len(together)
        if len(together) - len(set(together)) > allowed:
            first, second = _overlapping(rows)
            raise UserError(
                f'{path}: of {hosts} hosts, hosts {first} and {second} read the same examples: the '
                'input must heed num_infeed_hosts and infeed_host_index'
            )
    most = f'{HOSTS[0]} to {HOSTS[-1]} hosts'
    return f'{most} read examples of their own (in {num_batches} batches of each)'


def check_vocabularies(inputs: Mapping[str, Input]) -> str:
    """Checks that all inputs of an experiment have the same token ids.

    Returns:
        What was found, in words.

    Raises:
        UserError: one has others.
    """
    named = {path: data.vocabulary_name() for path, data in inputs.items()}
    named = {path: name for path, name in named.items() if name}
    if not named:
        return 'There are no vocabularies.'
    first, vocabulary = next(iter(named.items()))
    for path, name in named.items():
        if name != vocabulary:
            raise UserError(
                f'{path}: its vocabulary ({name}) is not that of {first} ({vocabulary}), and their '
                'ids would be mixed up'
            )
    return f'All inputs have one vocabulary: {vocabulary}'


def _read(data: Input, hosts: int, host: int, count: int) -> list[Batch]:
    share = host_share(data, hosts, host)
    batches = []
    with contextlib.closing(share), contextlib.suppress(EndOfData):
        for _ in range(count):
            batches.append(share.get_next())
    return batches


def _rows(batches: list[Batch]) -> Iterator[bytes]:
    """The examples that weigh something, comparable."""
    for batch in batches:
        # What numbers an example is no part of it.
        names = sorted(name for name in batch if name != 'example_ids')
        for row in range(len(batch[names[0]])):
            if 'weights' not in batch or batch['weights'][row].any():
                yield b''.join(batch[name][row].tobytes() for name in names)


def _overlapping(shares: list[list[bytes]]) -> tuple[int, int]:
    """The two shares with the most in common."""
    pairs = itertools.combinations(range(len(shares)), 2)
    return max(pairs, key=lambda pair: len(set(shares[pair[0]]) & set(shares[pair[1]])))
