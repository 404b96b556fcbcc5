"""Components: symbolic objects that are their own configuration and their own search space.

A component is a `pg.Object` with typed fields. It can be printed, compared (`pg.diff`), saved as
JSON, overridden by path, and searched over (`pg.oneof`).

A field that the compiled step takes as an *input* is marked as a number:

    class Dropout(Layer):
        rate: Number = 0.1

Components that differ only in such numbers have the same `code_key` and share one compiled program;
`bind` inserts the traced values while that program is traced.
"""

import contextlib
import contextvars
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import pyglove as pg

from trainer.symbolic import fields, identity
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.plain_numbers import plain as plain  # Fields convert numbers from here on.

C = TypeVar('C', bound='Component')


class _Mark(dict[str, Any]):
    """Field metadata. PyGlove wants a dict here, `typing` wants it to be hashable."""

    __hash__ = object.__hash__  # type: ignore[assignment]


_NUMBER = _Mark(number=True)

Number = Annotated[float, '', _NUMBER]
"""A float that the compiled step takes as input: a change needs no compilation."""


class _FloatOrNone(pg.typing.Float):
    """The type `float | None`. PyGlove's own type rejects `pg.floatv`."""

    @property
    def is_noneable(self) -> bool:
        return False

    def apply(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return None if value is None else super().apply(value, *args, **kwargs)


OptionalNumber = Annotated[float | None, '', _NUMBER]
"""A number that may be absent. None is structure (another program), 0.0 is a number."""

Count = Annotated[int, '', _NUMBER]
"""An integer that the compiled step takes as input, such as a number of warm-up steps."""

Numbers = Annotated[dict[str, float], '', _NUMBER]
"""Named floats, each of which the compiled step takes as input."""

NumberList = Annotated[list[float], '', _NUMBER]
"""Floats, each of which the compiled step takes as input. Their number is structure."""

CountList = Annotated[list[int], '', _NUMBER]
"""Integers, each of which the compiled step takes as input. Their number is structure."""

# Each new object asks PyGlove for the names of its fields, which it formats like any value. With
# their plain text, a component is made in a third less time.
pg.typing.ConstStrKey.__str__ = lambda key: key.text

_binding: contextvars.ContextVar[bool] = contextvars.ContextVar('binding', default=False)


_MISFIT = re.compile(r'Expect |Value (cannot be None|.* is not in candidate list)', re.DOTALL)
"""The start of an error of PyGlove's types."""

OWN_PACKAGES = ('trainer', 'paxtune')
"""Packages whose components have names without modules, which may move."""


class _ComponentMeta(type(pg.Object)):  # type: ignore[misc]
    """Gives a class its name in JSON, checkpoints and studies."""

    @property
    def __type_name__(cls) -> str:
        package = cls.__module__.partition('.')[0]
        prefix = package if package in OWN_PACKAGES else cls.__module__
        return f'{prefix}.{cls.__dict__.get("_serialization_name") or cls.__qualname__}'

    @property
    def __signature__(cls) -> inspect.Signature:
        # Otherwise the signature of `__call__`.
        own = inspect.signature(inspect.getattr_static(cls, '__init__'))
        return own.replace(parameters=list(own.parameters.values())[1:])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(cls.init_arg_list, args, strict=False)), **kwargs}
        try:
            made = super().__call__(*args, **kwargs)
        except (TypeError, ValueError) as error:
            known = list(map(str, cls.__schema__.fields))
            hints = [nearest(name, known) for name in kwargs if name not in known]
            if any(hints):
                raise TypeError(f'{error}. {" ".join(filter(None, hints))}') from error
            _explain(error, cls, {name: (cls, name) for name in given}, given)
            raise
        if not _binding.get():
            identity.validate_arguments(made, given)
        return made


class Component(pg.Object, metaclass=_ComponentMeta):
    """Base class of all parts of an experiment.

    Subclasses declare typed fields, and override `check` to validate their values. They may state
    the usual values of their fields, with which a search begins: see `usual_values`.

    Attributes:
        usual: the `UsualValue` of fields by name. It adds to the mapping of the base class; None
            removes a value of the base class.

    Example:
        >>> class Ring(Component):
        ...     inner: float
        ...     outer: float
        ...
        ...     def check(self):
        ...         if self.inner >= self.outer:
        ...             raise ValueError(f'inner ({self.inner}) must be below outer ({self.outer})')
        >>> Ring(1.0, 2.0).outer
        2.0
        >>> Ring(2.0, 1.0)
        Traceback (most recent call last):
        ...
        ValueError: inner (2.0) must be below outer (1.0)
    """

    is_unique = False
    usual: ClassVar[Mapping[str, Any]] = {}
    _identity = None

    def __init_subclass__(cls, serialization_name: str | None = None, **kwargs: Any) -> None:
        # Two classes of our packages may have one name; JSON then has another one for this class.
        cls._serialization_name = serialization_name
        annotations = cls.__annotations__
        for name, annotation in annotations.items():
            if annotation is OptionalNumber:
                # One spec per field: PyGlove stores the default in it.
                annotations[name] = Annotated[_FloatOrNone(), '', _NUMBER]
        super().__init_subclass__(**kwargs)

    def _on_bound(self) -> None:
        super()._on_bound()
        if _binding.get() or self.sym_partial:
            return
        _check_no_booleans(self)
        if not self.sym_puresymbolic:
            _check(self)

    def __setattr__(self, name: str, value: Any) -> None:
        # PyGlove keeps an attribute that is no field, so a typo would change nothing.
        if not name.startswith('_') and not hasattr(type(self), name):
            known = map(str, self.__schema__.fields)
            raise AttributeError(
                _at(self, f'there is no {name!r}. {nearest(name, known)}'.rstrip())
            )
        try:
            super().__setattr__(name, value)
        except pg.WritePermissionError:
            change = f'change a copy with .clone().rebind({name}=…)'
            raise AttributeError(_at(self, f'{name} cannot be assigned: {change}')) from None

    def rebind(self, path_value_pairs: Any = None, **kwargs: Any) -> Any:
        """Changes values by path, in place, as `pg.Object.rebind` does; returns this component."""
        changes = kwargs
        if isinstance(path_value_pairs, Mapping):
            changes = {**path_value_pairs, **kwargs}
        try:
            changed = super().rebind(path_value_pairs, **kwargs)
        except (TypeError, ValueError) as error:
            paths = {name: pg.KeyPath.parse(str(name)) for name in changes}
            owners = {
                name: (self.sym_get(path.parent), path.key)
                for name, path in paths.items()
                if path and self.sym_has(path.parent)
            }
            _explain(error, type(self), owners, changes)
            raise
        identity.validate_arguments(self, changes)
        return changed

    def check(self) -> None:
        """Raises ValueError if concrete values do not fit together.

        Not called while a field contains an open decision. An invalid combination therefore fails
        when the trial is materialized, before it trains.
        """

    def usual_values(self, experiment: Any) -> dict[str, Any]:
        """The `UsualValue` of fields by name; override it where one depends on the experiment.

        Args:
            experiment: the whole experiment, in which decisions may be open. None for a component
                on its own: then values that depend on the experiment are left out, or general.
        """
        stated: dict[str, Any] = {}
        for cls in reversed(type(self).__mro__):
            own = vars(cls).get('usual')
            stated |= own if isinstance(own, Mapping) else {}
        return {name: usual for name, usual in stated.items() if usual is not None}


def _explain(
    error: Exception,
    cls: type,
    places: Mapping[Any, tuple[Any, str | int]],
    given: Mapping[Any, Any],
) -> None:
    """Raises an error of PyGlove's types again: the field, the expected values, and the given one.

    Args:
        error: of any kind.
        cls: the class of the component.
        places: the owner and its key for each field, by path.
        given: the values that were passed, by path.
    """
    if not _MISFIT.match(str(error)):
        return
    for path, (owner, key) in places.items():
        try:
            fields.fit(fields.spec_of(owner, key), given[path], f'{cls.__name__}.{path}', 'None')
        except UserError as found:
            raise type(error)(str(found)) from None


def _check(component: Component) -> None:
    try:
        component.check()
    except ValueError as error:
        # A component outside of an experiment has no path yet.
        if path := str(component.sym_path):
            error.args = (f'{path}: {error}',)
        raise


def _at(component: Component, message: str) -> str:
    path, name = str(component.sym_path), type(component).__name__
    return f'{path} ({name}): {message}' if path else f'{name}: {message}'


def _check_no_booleans(component: Component) -> None:
    # PyGlove's `int` accepts True, which is a mistake of the user.
    for name, value in component.sym_items():
        if isinstance(value, bool):
            spec = component.__schema__.get_field(name).value
            if isinstance(spec, pg.typing.Int):
                raise TypeError(f'{type(component).__name__}.{name} must be an integer: {value}')


def require_positive(component: Component, *names: str) -> None:
    """Raises ValueError unless the named fields are at least 1, or None."""
    require_at_least(component, 1, *names)


def require_not_negative(component: Component, *names: str) -> None:
    """Raises ValueError unless the named fields are at least 0, or None."""
    _require(component, names, lambda value: value >= 0, 'not be negative')


def require_at_least(component: Component, least: float, *names: str) -> None:
    """Raises ValueError unless the named fields are at least `least`, or None."""
    _require(component, names, lambda value: value >= least, f'be at least {least}')


def require_share(component: Component, *names: str) -> None:
    """Raises ValueError unless the named fields lie between 0 and 1, or are None."""
    _require(component, names, lambda value: 0 <= value <= 1, 'lie between 0 and 1')


def require_above_zero(component: Component, *names: str) -> None:
    """Raises ValueError unless the named fields are above 0, or None."""
    _require(component, names, lambda value: value > 0, 'be above 0')


def require_fraction(component: Component, *names: str) -> None:
    """Raises ValueError unless the named fields lie in [0, 1), or are None."""
    _require(component, names, lambda value: 0 <= value < 1, 'lie in [0, 1)')


def _require(
    component: Component, names: Sequence[str], is_valid: Callable[[Any], bool], condition: str
) -> None:
    for name in names:
        value = component.sym_getattr(name)
        if value is not None and not is_valid(value):
            raise ValueError(f'{name} must {condition}: {value}')


def components(value: Any) -> Iterator[Component]:
    """Yields all components in a symbolic tree, owners before their parts."""
    if isinstance(value, Component):
        yield value
    if isinstance(value, pg.Object | pg.Dict | pg.List):
        for _, child in value.sym_items():
            yield from components(child)


def is_number(owner: Any, name: str | int) -> bool:
    """True if field `name` of `owner` is marked as a number."""
    if not isinstance(owner, pg.Object):
        return False
    field = owner.__schema__.get_field(name)
    return field is not None and bool(field.metadata.get('number'))


def numbers(value: Any, path: pg.KeyPath | None = None) -> dict[str, Any]:
    """Collects all numbers under `value`, by path; `path`, the path of `value`, is their prefix.

    Numbers that are None are structure and are left out.

    Example:
        >>> class Ramp(Component):
        ...     steps: Count = 10
        ...     slope: Number = 0.5
        ...     kind: str = 'linear'
        >>> numbers(Ramp())
        {'steps': 10, 'slope': 0.5}
    """
    found: dict[str, Any] = {}
    if not isinstance(value, pg.Object | pg.Dict | pg.List):
        return found
    for name, child in value.sym_items():
        here = pg.KeyPath(name, path)
        if is_number(value, name):
            several = isinstance(child, pg.Dict | pg.List)
            named = child.sym_items() if several else [(None, child)]
            for item, number in named:
                if number is not None:
                    found[str(here if item is None else pg.KeyPath(item, here))] = number
        else:
            found |= numbers(child, here)
    return found


def blank(number: Any) -> Any:
    """The structure of a number, or of several in one field."""
    if isinstance(number, pg.Dict):
        return {name: blank(value) for name, value in number.sym_items()}
    if isinstance(number, pg.List):
        return [blank(value) for value in number]
    return None if number is None else '#'


def structure(value: Any) -> Any:
    """`value` as plain JSON data with blanked numbers: the input of the compilation."""
    if isinstance(value, pg.Object):
        named = {
            name: blank(child) if is_number(value, name) else structure(child)
            for name, child in value.sym_items()
        }
        return {'_type': type(value).__serialization_key__, **named}
    if isinstance(value, pg.Dict):
        return {name: structure(child) for name, child in value.sym_items()}
    if isinstance(value, list | tuple):
        return [structure(child) for child in value]
    return pg.to_json(value)


def key(value: Any) -> str:
    """Hash of the structure of `value`, the same in any process. `code_key` knows code too."""
    return hashlib.sha256(json.dumps(structure(value), sort_keys=True).encode()).hexdigest()


def bind(value: C, values: Mapping[str, Any]) -> C:
    """A temporary deep clone of `value` with other numbers, usually traced ones.

    Call it inside the traced function. Code of components then reads traced values, as from
    `self.rate`. Numbers of an object without `bind` are silently compiled as constants.
    """
    with unchecked(), pg.enable_type_check(False), pg.as_sealed(False):
        bound = value.clone(deep=True, override=dict(values))
    bound.sym_setpath(value.sym_path)  # For messages with the path in the experiment.
    return bound


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Context manager in which no component checks its values."""
    token = _binding.set(True)
    try:
        yield
    finally:
        _binding.reset(token)
