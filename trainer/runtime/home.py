"""Home directories at the start of paths."""

import os

from trainer.symbolic.errors import UserError


def expanded(path: str | os.PathLike[str]) -> str:
    """Replaces `~`, or `~name`, at the start of a path by a home directory.

    Raises:
        UserError: no user has that name, or this one has no home directory.

    Example:
        >>> expanded('runs/~a'), expanded('gs://bucket/~a')
        ('runs/~a', 'gs://bucket/~a')
    """
    text = os.fspath(path)
    found = os.path.expanduser(text)
    if found == text and text.startswith('~'):
        name = text.partition('/')[0][1:]
        problem = f'this machine has no user {name}' if name else 'this user has no home: set HOME'
        raise UserError(f'{text}: {problem}, or write the path from / on')
    return found
