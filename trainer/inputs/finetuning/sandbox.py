"""Jinja's sandbox with limits, for chat templates. Imported at first use.

A template may come from anywhere. The sandbox has no attributes of Python, no files, and of methods
and filters only those of texts and lists below. Loops, calls and texts cost work, which is limited.
"""

import datetime
import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

from jinja2 import Template, TemplateError, ext, nodes, pass_context, sandbox
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 500_000
BEGIN, END = '\ufdd0', '\ufdd1'
"""Stand around an answer: two numbers of Unicode that are no characters."""

_STEP = 500  # The work of one round of a loop, or of one call.
_ELEMENT = 50
_MAX_BITS = 4096
_MAX_INDENT = 16
_METHODS = set(
    str.split(
        'strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith '
        'upper lower title capitalize find rfind index count isdigit isalpha isspace removeprefix '
        'removesuffix items keys values get join replace'
    )
)
_FILTERS = set(
    str.split(
        'abs count default d dictsort first float int items last length list map max min reject '
        'rejectattr reverse select selectattr sort unique'
    )
)
_COMPARING = {'dictsort', 'max', 'min', 'sort', 'unique'}
_TEXT_FILTERS = ('capitalize', 'lower', 'title', 'trim', 'upper')
_GLOBALS = ('range', 'dict', 'namespace')


class TooMuchWorkError(TemplateError):
    """A template that loops, calls or writes more than the limit."""


class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Renders templates as the library `transformers` does, within limits."""

    intercepted_binops = frozenset({'+', '*', '**', '%'})

    def __init__(self, max_work: int, today: datetime.date) -> None:
        """Makes a sandbox.

        Args:
            max_work: characters that a rendering may write; a round of a loop counts as 500.
            today: the day that `strftime_now` prints.
        """
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.LoopControlExtension]
        )
        self._max_work, self._left = max_work, 0
        self._lock = threading.Lock()
        self._templates: dict[str, Template] = {}
        self.finalize = pass_context(lambda _, value: self._checked(value))
        now = datetime.datetime.combine(today, datetime.time())
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {
            'raise_exception': _raise,
            'strftime_now': now.strftime,
        }
        self.filters = {name: self.filters[name] for name in _FILTERS} | self._own_filters()

    def rendered(self, source: str, variables: Mapping[str, Any]) -> str:
        """Renders a template; raises TemplateError, or errors of its expressions."""
        with self._lock:
            self._left = self._max_work
            if source not in self._templates:
                self._templates[source] = self.from_string(source)
            return self._templates[source].render(variables)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise TooMuchWorkError(f'it has more than {MAX_SOURCE:,} characters')
        found: nodes.Template = _WithWork().visit(super()._parse(source, name, filename))
        return found

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self._spend(_STEP)
        owner, name = getattr(obj, '__self__', None), getattr(obj, '__name__', '')
        if isinstance(owner, str | list | dict | tuple | int | float):
            if name not in _METHODS:
                raise SecurityError(f'{type(owner).__name__}.{name} is not allowed')
            self._checked(owner)
            if name in ('join', 'replace'):
                own = {key: x for key, x in kwargs.items() if key[0] != '_'}  # Jinja adds others.
                return getattr(self, f'_{name}')(owner, *args, **own)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        if getattr(value, '__name__', '') in ('format', 'format_map'):
            raise SecurityError('str.format is not allowed')
        return None

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        are_integers = isinstance(left, int) and isinstance(right, int)
        if operator == '*' and are_integers:
            if left.bit_length() + right.bit_length() > _MAX_BITS:
                raise TooMuchWorkError('its numbers are too large')
        elif operator == '*':
            for each, count in ((left, right), (right, left)):
                if isinstance(each, str | list | tuple) and isinstance(count, int):
                    self._spend(len(each) * max(count, 0))
        elif operator == '**' and not (abs(right) <= 64 and abs(left) < 2**64):
            raise TooMuchWorkError('its numbers are too large')
        elif operator == '%' and not isinstance(left, int | float):
            raise SecurityError('% of a text is not allowed')
        elif operator == '+' and isinstance(left, str | list | tuple):
            self._spend(len(left) + (len(right) if isinstance(right, str | list | tuple) else 0))
        return super().call_binop(context, operator, left, right)

    def _own_filters(self) -> dict[str, Callable[..., Any]]:
        texts = {name: self._of_text(self.filters[name]) for name in _TEXT_FILTERS}
        return texts | {
            '_checked': pass_context(lambda _, value: self._checked(value)),
            '_sized': pass_context(lambda _, value: self._sized(value)),
            '_rounds': pass_context(lambda _, values, work: self._rounds(values, work)),
            '_concat': pass_context(lambda _, values: self._join('', values)),
            'join': self._join_filter,
            'replace': lambda text, *args: self._replace(str(self._checked(text)), *args),
            'indent': self._indent,
            'safe': lambda value: value,
            'string': lambda value: str(self._checked(value)),
            'tojson': self._to_json,
        }

    def _of_text(self, method: Callable[..., str]) -> Callable[..., str]:
        return lambda text, *args: method(self._checked(text), *args)

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise TooMuchWorkError(
                f'it loops, calls or writes more than the limit of {self._max_work:,}'
            )

    def _checked(self, value: Any) -> Any:
        """The value, whose text is within the limit."""
        self._spend(len(value) if isinstance(value, str | range) else _ELEMENT)
        if isinstance(value, dict):
            for name, each in value.items():
                self._checked(name)
                self._checked(each)
        elif isinstance(value, Collection) and not isinstance(value, str | range):
            for each in value:
                self._checked(each)
        return value

    def _sized(self, value: Any) -> Any:
        """The value, whose elements are within the limit."""
        self._spend(_ELEMENT + (len(value) if hasattr(value, '__len__') else 0))
        return value

    def _rounds(self, values: Iterable[Any], work: int) -> '_Rounds':
        return _Rounds(values, lambda: self._spend(_STEP + work))

    def _join(self, separator: str, values: Iterable[Any]) -> str:
        parts = []
        for value in values:
            self._spend(len(separator))
            parts.append(str(self._checked(value)))
        return separator.join(parts)

    def _join_filter(self, values: Iterable[Any], d: str = '', attribute: Any = None) -> str:
        if attribute is not None:
            values = [self.getitem(value, attribute) for value in values]
        return self._join(d, values)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        self._spend(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _indent(self, text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
        self._spend((len(text) + 1) * _MAX_INDENT)
        margin = ' ' * min(int(width), _MAX_INDENT)
        head, *others = text.split('\n')
        others = [margin + line if line or blank else line for line in others]
        return '\n'.join([margin + head if first else head, *others])

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        indent = None if indent is None else min(int(indent), _MAX_INDENT)
        return json.dumps(
            self._checked(value),
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )


class _Rounds:
    """Values of a loop, each of which costs work."""

    def __init__(self, values: Iterable[Any], spend: Callable[[], None]) -> None:
        self._values, self._spend = values, spend

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._spend()
            yield value


class _WithWork(NodeTransformer):
    """Makes loops, filters, comparisons and joined texts pay for their work."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise SecurityError('recursive loops are not allowed')
        data = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filtered(node.iter, '_rounds', nodes.Const(data))
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.node is not None:
            compares = node.name in _COMPARING
            node.node = _filtered(node.node, '_checked' if compares else '_sized')
        node.args = [_checked(each) for each in node.args]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _checked(node.expr)
        for each in node.ops:
            each.expr = _checked(each.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        if node.args:
            node.args = [_checked(each) for each in node.args]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), '_concat')

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        # A call pays for the text of its macro: a loop of one round does so.
        self.generic_visit(node)
        data = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        once = nodes.Const([0], lineno=node.lineno)
        paid = nodes.ExprStmt(
            nodes.Filter(_filtered(once, '_rounds', nodes.Const(data)), 'list', [], [], None, None)
        )
        node.body.insert(0, paid.set_lineno(node.lineno))
        return node


def _checked(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filtered(node, '_checked')


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    made = nodes.Filter(cast(nodes.Expr, node), name, list(args), [], None, None)
    made.set_lineno(node.lineno)
    return made


class _Generation(ext.Extension):
    """`{% generation %}` … `{% endgeneration %}` mark an answer, as in `transformers`."""

    tags = {'generation'}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
        begin, end = (
            nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (BEGIN, END)
        )
        return [begin, *body, end]


def _raise(message: str) -> None:
    raise TemplateError(message)
