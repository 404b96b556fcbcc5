"""Errors of the user's code: their messages, and the line to look at."""

import functools
import os
import sysconfig
import traceback
import types
from pathlib import Path

from trainer.symbolic.errors import UserError, causes

_OWN_PACKAGES = ('paxtune', 'trainer')


def described(error: BaseException) -> str:
    """Renders an error for people, with the last line of the user's code that led to it."""
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip().split('\n')[0]
    named = f'{type(error).__name__}: {text}' if text else type(error).__name__
    if isinstance(error, UserError):
        named = text
    place = user_line(error)
    return named if place is None else f'{named} ({place})'


def user_line(error: BaseException) -> str | None:
    """Finds the last line of the user's code in the traceback of an error, or of its causes.

    Returns:
        `<file>:<line>`; None where only libraries were running.
    """
    for each in causes(error):
        if isinstance(each, SyntaxError) and each.filename:
            return f'{_relative(each.filename)}:{each.lineno}'
        for frame, line in reversed(list(traceback.walk_tb(each.__traceback__))):
            if _is_users(frame):
                return f'{_relative(frame.f_code.co_filename)}:{line}'
    return None


def _relative(path: str) -> str:
    return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path


def _is_users(frame: types.FrameType) -> bool:
    module, path = str(frame.f_globals.get('__name__', '')), frame.f_code.co_filename
    if module.partition('.')[0] in _OWN_PACKAGES:
        return False
    # Code without a file is the user's in a notebook, and else a library's.
    return module == '__main__' if path.startswith('<') else not path.startswith(_libraries())


@functools.cache
def _libraries() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')}
    root = Path(__file__).parents[2]  # A command of ours is `__main__`, too.
    places |= {str(root / package) for package in _OWN_PACKAGES}
    return tuple(os.path.join(place, '') for place in sorted(places))
