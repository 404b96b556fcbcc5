"""Errors of the user's code: their messages, and the line to look at."""

import functools
import inspect
import os
import sysconfig
import traceback
import types
from pathlib import Path

from trainer.symbolic.errors import UserError, causes, text_of


def described(error: BaseException) -> str:
    """Renders an error for people, with the last line of the user's code that led to it."""
    text = str(error.msg) if isinstance(error, SyntaxError) else text_of(error)
    text = text.strip().split('\n')[0]
    if not isinstance(error, UserError):
        text = f'{type(error).__name__}: {text}' if text else type(error).__name__
    place = user_line(error)
    return text if place is None else f'{text} ({place})'


def user_line(error: BaseException) -> str | None:
    """The last line of the user's code in an error, `<file>:<line>`; None for libraries alone."""
    for each in causes(error):
        if isinstance(each, SyntaxError) and each.filename:
            return f'{_relative(each.filename)}:{each.lineno}'
        for frame, line in reversed(list(traceback.walk_tb(each.__traceback__))):
            if _is_users(frame):
                return f'{_relative(frame.f_code.co_filename)}:{line}'
    return None


def unwrapped(function: object) -> object:
    """The function inside of partial ones, bound methods and decorators."""
    while isinstance(function, functools.partial | types.MethodType):
        is_partial = isinstance(function, functools.partial)
        function = getattr(function, 'func' if is_partial else '__func__')
    return inspect.unwrap(function) if callable(function) else function


def code_of(function: object) -> types.CodeType | None:
    """The code of a function, or of the calls of an object; None where it is not Python's."""
    own = unwrapped(function)
    call = inspect.getattr_static(type(own), '__call__', None)
    found = getattr(own, '__code__', None) or getattr(call, '__code__', None)
    return found if isinstance(found, types.CodeType) else None


def place_of(function: object, line: int | None = None) -> str | None:
    """The place of a function, `<file>:<line>`, or of a line of it; None for one without code."""
    code = code_of(function)
    return None if code is None else f'{_relative(code.co_filename)}:{line or code.co_firstlineno}'


def _relative(path: str) -> str:
    return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path


def _is_users(frame: types.FrameType) -> bool:
    path = frame.f_code.co_filename
    if path.startswith('<'):  # The user's in a notebook, and else a library's.
        return frame.f_globals.get('__name__') == '__main__'
    return not is_of_library(path)


@functools.lru_cache(maxsize=4096)
def is_of_library(path: str) -> bool:
    """True for a file of a library, of Python or of our packages."""
    return path.startswith(('<frozen', *_libraries()))


@functools.cache
def _libraries() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')}
    places |= {str(Path(__file__).parents[2] / package) for package in ('paxtune', 'trainer')}
    return tuple(os.path.join(place, '') for place in sorted(places))
