import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyglove as pg

from paxtune.search_space.decision_rows import rows
from paxtune.search_space.decisions import (
    MAX_DECISIONS,
    DecisionPoint,
    Decisions,
    active_decision_points,
    decide,
    decision_points,
    is_integer,
    size,
    slot_ids,
    slots,
)
from paxtune.search_space.decoder import Decoder
from paxtune.search_space.labels import (
    candidate_names,
    display_value,
    match_candidate,
    parameter_path,
)
from paxtune.search_space.shared_decisions import with_shared_scope
from trainer.runtime.directory import is_folder_name, short_names
from trainer.symbolic.component import Component
from trainer.symbolic.derived import SHARED, check_names, resolve_in_place
from trainer.symbolic.errors import UserError, nearest
from trainer.symbolic.html import html_table
from trainer.symbolic.identity import validate_decisions
from trainer.symbolic.plain_numbers import is_array, leaves, with_plain_numbers
from trainer.symbolic.ranges import IntRange, with_plain_scales


class MissingDecisionsError(UserError):
    """Decisions of an experiment were not given."""


class Space:
    """Search space of a symbolic value, with names of its decisions and decoding to concrete
    values.

    For people, a decision has its path in the concrete experiment. A candidate has its value as a
    name, or its class with the fields that differ from the defaults.

    Decisions of one name are a single decision (`with_shared_scope`). Derived values are resolved
    once the decisions are made.

    Attributes:
        value: symbolic value with its decisions, shared ones in its field `shared`.
        spec: its search space.
        why_no_value: where classes of the value are missing, why decisions cannot be decoded.

    Example:
        >>> space = Space(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log'), kind=pg.oneof(['a', 'b'])))
        >>> decisions = space.parse({'rate': 0.001, 'kind': 'b'})
        >>> decisions
        {'rate': 0.001, 'kind': 1}
        >>> space.readable(decisions)
        {'rate': 0.001, 'kind': 'b'}
        >>> space.materialize(decisions).kind
        'b'
    """

    def __init__(self, value: Any) -> None:
        """Validates the space of a value.

        Raises:
            UserError: the space is empty, or contains an unsupported decision or a derived value of
                an unknown path.
        """
        self.why_no_value = ''
        validate_decisions(value)
        _validate_candidates(value)
        self.value = with_shared_scope(with_plain_scales(with_plain_numbers(value)))
        # A mapping gets a key for shared decisions, which concrete values omit.
        self._omits_shared = isinstance(value, pg.Dict) and SHARED not in value
        check_names(self.value)
        template = pg.template(self.value)
        _validate(template, pg.KeyPath())
        _validate_size(template)
        try:
            self.spec: pg.DNASpec = template.dna_spec()
        except ValueError as error:
            raise UserError(f'The search space is inconsistent: {error}') from error
        if not self.spec.elements:
            raise UserError(
                'There is nothing to search: no field of the experiment holds a decision such as '
                "pg.oneof([…]) or pg.floatv(low, high). Add one, or use --tune 'path=…'."
            )
        self._labels, self._texts = dict[str, list[Any]](), dict[str, list[Any]]()
        self._candidates = dict[str, Sequence[Any]]()
        self._label(template, self.spec)
        self._decoder = Decoder(template, self.spec)

    def _label(self, template: pg.hyper.ObjectTemplate, spec: pg.geno.Space) -> None:
        # The hyper values of a template and the elements of its spec correspond.
        for (_, hyper), point in zip(template.hyper_primitives, spec.elements, strict=True):
            if isinstance(point, pg.geno.Float):
                continue
            names = candidate_names(hyper.candidates)
            texts = [display_value(each, with_derived=False) for each in hyper.candidates]
            texts = texts if len({*map(repr, texts)}) == len(texts) else names
            for slot in slots(point):
                self._labels[slot.id.path], self._texts[slot.id.path] = names, texts
                self._candidates[slot.id.path] = hyper.candidates
                opened = zip(hyper.candidate_templates, slot.candidates, strict=True)
                for candidate_template, candidate_spec in opened:
                    self._label(candidate_template, candidate_spec)

    def _repr_html_(self) -> str:
        cells = [dataclasses.astuple(row) for row in rows(self)]
        return html_table(
            f'Search space of {self.size_text} different experiments',
            ['decision', 'legal', 'scale', 'only if'],
            cells,
        )

    @property
    def is_tunable(self) -> bool:
        """True for a `Tunable`; False for the arguments of a function."""
        # Importing the class would import JAX.
        return isinstance(self.value, Component) and hasattr(type(self.value), 'parts')

    @property
    def sub_experiments(self) -> list[str]:
        """Names of the sub-experiments of a trial, if any; UserError for a path as a name."""
        names = [str(name) for name in self.value.sub_experiments] if self.is_tunable else []
        if invalid := [name for name in names if not is_folder_name(name)]:
            raise UserError(f'sub_experiments: {invalid[0]!r} is not a valid name')
        return names

    @functools.cached_property
    def size(self) -> int | None:
        """Number of distinct experiments; None if a range makes it infinite."""
        return size(self.spec)

    @property
    def size_text(self) -> str:
        """The same for people."""
        return 'infinitely many' if self.size is None else f'{self.size:,}'

    @property
    def ids(self) -> list[str]:
        """Ids of all decisions, conditional ones included."""
        return [id_ for point in decision_points(self.spec) for id_ in slot_ids(point)]

    @property
    def paths(self) -> list[str]:
        """Paths of all decisions, conditional ones included."""
        return list(dict.fromkeys(map(parameter_path, self.ids)))

    @functools.cached_property
    def short_names(self) -> dict[str, str]:
        """Short names of all decisions by path, the same in every trial."""
        return dict(zip(self.paths, short_names(self.paths), strict=True))

    def named(self, name: str) -> str:
        """Returns the path of a decision, given that or its short name.

        Raises:
            UserError: there is no such decision.
        """
        known = {short: path for path, short in self.short_names.items()}
        known |= {path: path for path in self.short_names}
        if name in known:
            return known[name]
        hint = nearest(name, known) or f'There are {", ".join(self.short_names)}.'
        raise UserError(f'{name}: there is no such decision. {hint}')

    def materialize(self, decisions: Decisions) -> Any:
        """Decodes decisions to the concrete experiment.

        Raises:
            ValueError: a component's `check` rejects the values, or a derived value does not fit
                its field.
            UserError: a derived value names a path that does not exist with these decisions.
        """
        value = resolve_in_place(self.decode(decisions))
        if self._omits_shared:
            value.pop(SHARED, None)
        return value

    def decode(self, decisions: Decisions) -> Any:
        """Decodes decisions, and leaves derived values unresolved; ValueError as `materialize`."""
        if self.why_no_value:
            raise UserError(self.why_no_value)
        return self._decoder.decode(decisions)

    def readable(self, decisions: Decisions) -> dict[str, Any]:
        """Converts decisions to {path in the concrete experiment: plain value or name}."""
        return {
            parameter_path(id_): self._labels[id_][int(value)] if id_ in self._labels else value
            for id_, value in decisions.items()
        }

    def parse(self, readable: Mapping[str, Any], partial: bool = False) -> Decisions:
        """Parses decisions that a user wrote; the inverse of `readable`.

        Args:
            readable: {path in the concrete experiment: value}. Values may be text from a command
                line: `'64'` stands for 64, `'Gelu()'` for that component.
            partial: allow missing decisions.

        Raises:
            MissingDecisionsError: decisions are missing, unless `partial`.
            UserError: a decision is unknown or inactive, or a value is illegal.
        """
        decisions: Decisions = {}
        missing: list[str] = []
        self._parse(self.spec, readable, decisions, missing)
        self.require_names(readable)
        if missing and not partial:
            raise MissingDecisionsError('\n  '.join(['These decisions are missing:', *missing]))
        if inactive := set(readable) - set(map(parameter_path, decisions)):
            raise UserError(f'{min(inactive)} is inactive with the other decisions.')
        if not missing:
            _validate_distinct(self.spec, decisions)
        return decisions

    def adopt(self, value_at: Callable[[str], Any]) -> Decisions | None:
        """Translates decisions of another space, given its value at the path of each decision.

        Returns None if one is missing or illegal here.
        """

        def choose(point: DecisionPoint) -> Sequence[int] | float:
            values = [
                self.legal(slot, value_at(parameter_path(slot.id.path))) for slot in slots(point)
            ]
            if None in values:
                raise LookupError(point.id.path)
            found: Any = values[0] if isinstance(point, pg.geno.Float) else values
            return found

        try:
            decisions = decide(self.spec, choose)
            _validate_distinct(self.spec, decisions)
        except (LookupError, UserError):
            return None
        return decisions

    def _parse(
        self, spec: pg.DNASpec, readable: Mapping[str, Any], made: Decisions, missing: list[str]
    ) -> None:
        if isinstance(spec, pg.geno.Space):
            for element in spec.elements:
                self._parse(element, readable, made, missing)
            return
        for slot in slots(spec):
            name = parameter_path(slot.id.path)
            if name not in readable:
                missing.append(f'{name}: {self.legal_values(slot)}')
                continue
            value = self.legal(slot, readable[name])
            if value is None:
                raise UserError(f'{name} must be {self.legal_values(slot)}: {readable[name]!r}')
            made[slot.id.path] = value
            if isinstance(slot, pg.geno.Choices):
                self._parse(slot.candidates[value], readable, made, missing)

    def legal(self, point: DecisionPoint, value: Any) -> int | float | None:
        """Parses the value of one decision, as `parse`; None if it is illegal."""
        if isinstance(point, pg.geno.Choices):
            found = match_candidate(value, self._labels[point.id.path])
            # A candidate itself, or its text, in place of its name.
            return match_candidate(value, self._texts[point.id.path]) if found is None else found
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (OverflowError, TypeError, ValueError):
            return None
        if not point.min_value <= number <= point.max_value:
            return None
        if is_integer(point):
            return int(number) if number.is_integer() else None
        return number

    def legal_values(self, point: DecisionPoint) -> str:
        """Description of the legal values at a decision point."""
        if isinstance(point, pg.geno.Choices):
            return 'one of ' + ', '.join(map(str, self._labels[point.id.path]))
        if is_integer(point):
            return f'an integer from {int(point.min_value)} to {int(point.max_value)}'
        return f'a number from {point.min_value!r} to {point.max_value!r}'

    def candidate_names(self, slot: pg.geno.Choices) -> list[Any]:
        """Names of the candidates of a slot."""
        return list(self._labels[slot.id.path])

    def candidates(self, slot: pg.geno.Choices) -> Sequence[Any]:
        """Candidates of a slot, in which decisions may be open."""
        return self._candidates[slot.id.path]

    def require_names(self, names: Iterable[str]) -> None:
        """Raises UserError for a path that no decision has."""
        known = self.paths
        for name in names:
            if name not in known:
                hint = nearest(name, known) or f'Its decisions are {", ".join(known)}.'
                raise UserError(f'{name} is no decision of this experiment. {hint}')


def _validate_candidates(value: Any) -> None:
    for path, leaf in leaves(value):
        if is_array(leaf):
            owner = value
            for key in path.keys:
                if isinstance(owner, pg.hyper.HyperPrimitive):
                    raise UserError(
                        f'{path}: an array of shape {leaf.shape} is no candidate. Give a list: '
                        'array.tolist(), or a number'
                    )
                owner = owner.sym_getattr(key)


def _validate(template: pg.hyper.ObjectTemplate, where: pg.KeyPath) -> None:
    for relative, hyper in template.hyper_primitives:
        here = where + relative
        if isinstance(hyper, pg.hyper.Float):
            _validate_range(hyper, here)
        elif isinstance(hyper, pg.hyper.Choices):
            for candidate in hyper.candidate_templates:
                _validate(candidate, here)
        else:
            raise UserError(
                f'{here}: {type(hyper).__name__} cannot be searched. Use pg.oneof, pg.manyof, '
                'pg.permutate, pg.floatv or paxtune.intv.'
            )


def _validate_size(template: pg.hyper.ObjectTemplate) -> None:
    numbers = {path: _num_decisions(hyper) for path, hyper in template.hyper_primitives}
    if sum(numbers.values()) > MAX_DECISIONS:
        where = max(numbers, key=lambda path: numbers[path])
        raise UserError(
            f'{where}: {numbers[where]} decisions are too many, conditional ones included: at most '
            f'{MAX_DECISIONS}'
        )


def _num_decisions(hyper: Any) -> int:
    if not isinstance(hyper, pg.hyper.Choices):
        return 1
    opened = sum(
        _num_decisions(inner)
        for candidate in hyper.candidate_templates
        for _, inner in candidate.hyper_primitives
    )
    return int(hyper.num_choices) * (1 + opened)


def _validate_range(hyper: pg.hyper.Float, where: pg.KeyPath) -> None:
    low, high = hyper.min_value, hyper.max_value
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise UserError(
            f'{where}: a range must have finite bounds, the lower one first: {low}, {high}'
        )
    if isinstance(hyper, IntRange) and not (low.is_integer() and high.is_integer()):
        raise UserError(f'{where}: the bounds of intv must be integers: {low}, {high}')
    if hyper.scale in ('log', 'rlog') and low <= 0:
        raise UserError(f'{where}: a range on a {hyper.scale} scale must start above 0: {low}')


def _validate_distinct(spec: pg.DNASpec, decisions: Decisions) -> None:
    for point in active_decision_points(spec, decisions):
        chosen = [decisions[id_] for id_ in slot_ids(point)]
        if len(chosen) == 1:
            continue
        if point.distinct and len(set(chosen)) < len(chosen):
            raise UserError(
                f'{parameter_path(point.id.path)}: the choices must differ from each other.'
            )
        if point.sorted and chosen != sorted(chosen):
            raise UserError(
                f'{parameter_path(point.id.path)}: the choices must be in order of candidates.'
            )
