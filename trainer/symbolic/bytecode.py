"""Names and texts of code objects."""

import dis
import functools
import types
from typing import NamedTuple


class Names(NamedTuple):
    """Names in code, of nested functions too.

    Attributes:
        read: read as globals, if they are no local variables.
        imported: modules that functions import, with a dot for each level of a relative name.
        all: attributes included.
        stored: assigned variables of modules and outer functions, and attributes of classes.
        own: attributes of `self` that are assigned.
    """

    read: tuple[str, ...]
    imported: tuple[str, ...]
    all: tuple[str, ...]
    stored: tuple[str, ...]
    own: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def names(code: types.CodeType) -> Names:
    """Lists the names in code."""
    read, imported, stored, own = set[str](), set[str](), set[str](), set[str]()
    instructions = [each for each in dis.get_instructions(code) if each.opname != 'EXTENDED_ARG']
    for at, instruction in enumerate(instructions):
        name = instruction.argval
        if instruction.opname in ('LOAD_GLOBAL', 'LOAD_NAME'):
            read.add(name)
        elif instruction.opname == 'IMPORT_NAME':
            imported.add('.' * instructions[at - 2].argval + name)
        elif instruction.opname in ('STORE_GLOBAL', 'STORE_DEREF'):
            stored.update({name} - {*code.co_cellvars})
        elif instruction.opname == 'STORE_ATTR':
            place = _local(instructions, at)
            if place in (None, 'cls'):
                stored.add(name)
            elif place == 'self':
                own.add(name)
    found = [read, imported, {*code.co_names}, stored, own]
    inner = [names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    columns = zip(found, *inner, strict=True)
    return Names(*(tuple(sorted({*each}.union(*more))) for each, *more in columns))


def _local(instructions: list[dis.Instruction], at: int) -> str | None:
    """The local variable whose attribute an instruction stores; None for another expression."""
    name, at = instructions[at].argval, at - 1
    if instructions[at].opname == 'SWAP':  # As in `self.count += 1`.
        while at > 1 and (instructions[at].opname, instructions[at].argval) != ('LOAD_ATTR', name):
            at -= 1
        at -= 2  # The instruction between copies the object.
    found = instructions[at]
    if not found.opname.startswith('LOAD_FAST'):
        return None
    return str(found.argval[-1] if isinstance(found.argval, tuple) else found.argval)


@functools.lru_cache(maxsize=4096)
def code_text(code: types.CodeType, doc: str | None = None) -> str:
    """Renders code without its places, the same in any process of one version of Python.

    Args:
        code: the code.
        doc: the docstring of the function, which does not count.
    """
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    variables = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    texts = [_text(each) for each in code.co_consts]
    if texts and code.co_consts[0] == doc:
        texts[0] = ''
    return repr((code.co_code, code.co_exceptiontable, arguments, variables, texts))


def _text(value: object) -> str:
    if isinstance(value, types.CodeType):
        return code_text(value)
    if isinstance(value, frozenset | tuple):
        texts = [_text(each) for each in value]
        return f'{type(value).__name__} {sorted(texts) if isinstance(value, frozenset) else texts}'
    return f'{type(value).__name__} {value!r}'
