import contextlib
import itertools
from collections.abc import Iterator, Mapping

from trainer.inputs.base import Batch, EndOfData, Input, host_share
from trainer.inputs.weights import example_mask
from trainer.symbolic.errors import UserError, prefixed

HOSTS = (2, 3, 4)
"""Simulated numbers of hosts."""

_TOLERANCE = 0.01
"""Allowed fraction of repeated examples; shards that overlap have far more in common."""


def check_hosts(path: str, data: Input, num_batches: int) -> str:
    """Reads copies of a prepared input as several hosts would. Returns a message.

    Raises:
        UserError: hosts read the same examples, or have different numbers of batches.
    """
    for hosts in HOSTS:
        with prefixed(f'{path}: as one of {hosts} hosts'):
            shards = [_read(data, hosts, host, num_batches) for host in range(hosts)]
        ends = {len(shard) for shard in shards}
        if len(ends) > 1:
            raise UserError(
                f'{path}: of {hosts} hosts some end after {min(ends)} batches and others do not: '
                'all must have the same number'
            )
        rows = [list(_rows(shard)) for shard in shards]
        together = list(itertools.chain(*rows))
        # The number of repetitions that one host alone reads.
        alone = list(_rows(_read(data, 1, 0, num_batches * hosts)))
        allowed = max(0, len(alone) - len(set(alone))) + _TOLERANCE * len(together)
        if len(together) - len(set(together)) > allowed:
            first, second = _overlapping(rows)
            raise UserError(
                f'{path}: of {hosts} hosts, hosts {first} and {second} read the same examples: the '
                'input must use num_infeed_hosts and infeed_host_index'
            )
    hosts_text = f'{HOSTS[0]} to {HOSTS[-1]} hosts'
    return f'{hosts_text} read distinct examples (in {num_batches} batches of each)'


def check_vocabularies(inputs: Mapping[str, Input]) -> str:
    """Checks that all inputs have one vocabulary, or raises UserError. Returns a message."""
    named = {path: data.vocabulary_name() for path, data in inputs.items()}
    named = {path: name for path, name in named.items() if name}
    if not named:
        return 'There are no vocabularies.'
    first, vocabulary = next(iter(named.items()))
    for path, name in named.items():
        if name != vocabulary:
            raise UserError(
                f'{path}: its vocabulary ({name}) differs from the one of {first} ({vocabulary}): '
                'their ids have other meanings'
            )
    return f'All inputs have one vocabulary: {vocabulary}'


def _read(data: Input, hosts: int, host: int, count: int) -> list[Batch]:
    shard = host_share(data, hosts, host)
    batches = []
    with contextlib.closing(shard), contextlib.suppress(EndOfData):
        for _ in range(count):
            batches.append(shard.get_next())
    return batches


def _rows(batches: list[Batch]) -> Iterator[bytes]:
    """Yields the examples with a weight, as comparable bytes."""
    for batch in batches:
        # The number of an example does not belong to its content.
        names = sorted(name for name in batch if name.rpartition('.')[2] != 'example_ids')
        mask = example_mask(batch)
        for row in range(len(batch[names[0]])):
            if mask is None or mask[row]:
                yield b''.join(batch[name][row].tobytes() for name in names)


def _overlapping(shards: list[list[bytes]]) -> tuple[int, int]:
    pairs = itertools.combinations(range(len(shards)), 2)
    return max(pairs, key=lambda pair: len(set(shards[pair[0]]) & set(shards[pair[1]])))
