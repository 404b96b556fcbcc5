"""Conformance suite of algorithms: call `check_algorithm(algorithm)` in a test of the algorithm."""

import dataclasses
import functools
import math
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import Algorithm, Exhausted, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.enumeration import enumerate_decisions
from paxtune.search_space.decisions import (
    Decisions,
    decide,
    is_integer,
    size,
    to_dna,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv
from trainer.symbolic.serialization import from_json_text, to_json_text


def log_range() -> Any:
    return pg.Dict(rate=pg.floatv(1e-5, 1e-1, 'log'), width=pg.oneof([16, 32, 64, 128]))


def conditional() -> Any:
    layer = pg.oneof(
        [
            pg.Dict(heads=pg.oneof([1, 2, 4]), rate=pg.floatv(0.0, 1.0)),
            pg.Dict(width=pg.manyof(2, [pg.oneof([1, 2]), 3, 4])),
            None,
        ]
    )
    return pg.Dict(layer=layer, scale=pg.floatv(0.5, 0.9, 'rlog'))


def several() -> Any:
    return pg.Dict(
        order=pg.permutate(['a', 'b', 'c']),
        some=pg.manyof(2, [1, 2, 3, 4], sorted=True),
        repeated=pg.manyof(3, [1, 2], distinct=False),
    )


def small() -> Any:
    return pg.Dict(kind=pg.oneof([pg.oneof(['a', 'b']), 'c']), on=pg.oneof([True, False]))


def integers() -> Any:
    return pg.Dict(
        width=intv(1, 512, 'log'),
        depth=pg.oneof([None, intv(-2, 5)]),
        sizes=pg.manyof(2, [intv(1, 3), 8, 9], distinct=False),
    )


def small_integers() -> Any:
    return pg.Dict(depth=pg.oneof([intv(1, 3), 'none']), width=intv(1, 2, 'log'))


def layer_stack() -> Any:
    layers = [pg.oneof([pg.Dict(width=pg.oneof([1, 2])), 'attention', 'none']) for _ in range(3)]
    return pg.Dict(layers=['fixed', *layers])


SPACES: Sequence[Callable[[], Any]] = (
    log_range,
    conditional,
    several,
    small,
    integers,
    layer_stack,
)
LAYER_SPACES = (several, integers, layer_stack)  # With layer lists.


def merit(decisions: Decisions) -> float:
    """Negative reward of any decisions."""
    return math.fsum(math.sin(7 * value + len(id_)) for id_, value in decisions.items()) - 100


def past(
    number: int, suggestion: Suggestion, infeasible: bool = False, num_objectives: int = 1
) -> Observation:
    """Ended trial."""
    decisions = suggestion.decisions
    if infeasible:
        return Observation(
            number, decisions, 'infeasible', algorithm_state=suggestion.algorithm_state
        )
    scores = (merit(decisions), -merit(decisions), math.cos(merit(decisions)))[:num_objectives]
    return Observation(number, decisions, 'completed', scores, suggestion.algorithm_state)


def forbidden(decisions: Decisions) -> str | None:
    """Constraint that a third of any space violates."""
    number = zlib.crc32(repr(list(decisions.items())).encode())
    return None if number % 3 else 'forbidden'


def _all_feasible(decisions: Decisions) -> None:
    return None


Why = Callable[[Decisions], str | None]


def ask(
    algorithm: Algorithm,
    spec: pg.DNASpec,
    history: Sequence[Observation],
    seed: int = 0,
    infeasible: Why = _all_feasible,
) -> Suggestion:
    """Suggestion for the trial after `observations`."""
    number = max([trial.id for trial in history if trial.id > 0], default=0) + 1
    return algorithm.suggest(
        SuggestionContext(spec, seed, number, lambda: list(history), infeasible)
    )


def run(
    algorithm: Algorithm,
    spec: pg.DNASpec,
    count: int,
    seed: int = 0,
    infeasible: float = 0.2,
    constraint: Why = _all_feasible,
    num_objectives: int = 1,
) -> list[Observation]:
    """Runs a study of `count` trials, of which a fraction turns out `infeasible`.

    It ends when the space is exhausted.
    """
    rng = random.Random(seed)
    history: list[Observation] = []
    for number in range(1, count + 1):
        try:
            suggestion = ask(algorithm, spec, history, seed, constraint)
        except Exhausted:
            break
        _check_parent(suggestion, history)
        fails = rng.random() < infeasible
        history.append(past(number, suggestion, fails, num_objectives))
    return history


def searched(
    algorithm: Algorithm,
    spec: pg.DNASpec,
    score: Callable[[Decisions], float | tuple[float, ...] | None],
    count: int,
    seed: int = 0,
    constraint: Why = _all_feasible,
) -> list[Observation]:
    """Runs a study whose trials score by their decisions; one without a score is infeasible."""
    history: list[Observation] = []
    for number in range(1, count + 1):
        made = ask(algorithm, spec, history, seed, constraint)
        found = score(made.decisions)
        scores = found if isinstance(found, tuple) else () if found is None else (found,)
        state: Any = 'completed' if scores else 'infeasible'
        history.append(Observation(number, made.decisions, state, scores, made.algorithm_state))
    return history


def _check_parent(suggestion: Suggestion, history: Sequence[Observation]) -> None:
    completed = [trial.id for trial in history if trial.state == 'completed' and trial.id > 0]
    assert suggestion.parent is None or suggestion.parent in completed


def _all(trials: Sequence[Observation]) -> set[tuple[tuple[str, int | float], ...]]:
    return {tuple(trial.decisions.items()) for trial in trials}


def _searches(algorithm: Algorithm, spec: pg.DNASpec, num_objectives: int = 1) -> bool:
    """Returns True if the algorithm accepts a space."""
    try:
        algorithm.check_space(spec, num_objectives)
    except UserError:
        return False
    return True


def check_algorithm(
    algorithm: Algorithm, spaces: Sequence[Callable[[], Any]] = SPACES, num_objectives: int = 1
) -> None:
    """Runs all checks.

    Args:
        algorithm: the algorithm.
        spaces: spaces that it may search.
        num_objectives: number of rewards of the histories that it has to cope with.
    """
    check_json(algorithm)
    for make in (small, small_integers):
        check_covers_a_finite_space(algorithm, pg.dna_spec(make()), num_objectives)
    check_scales(algorithm)
    searched = [make for make in spaces if _searches(algorithm, pg.dna_spec(make()))]
    assert {small, integers} & set(spaces) <= set(searched), 'finite spaces can be searched'
    for make in searched:
        spec = pg.dna_spec(make())
        check_suggestions_are_legal(algorithm, spec)
        check_suggestions_are_functions_of_the_context(algorithm, spec, num_objectives)
        check_copes_with_any_history(algorithm, spec, num_objectives)
        check_earlier_studies(algorithm, spec, num_objectives)


def check_json(algorithm: Algorithm) -> None:
    text = to_json_text(algorithm)
    assert pg.eq(from_json_text(text, Algorithm, source='text'), algorithm)


def check_suggestions_are_legal(algorithm: Algorithm, spec: pg.DNASpec) -> None:
    for num_objectives, constraint in ((1, _all_feasible), (1, forbidden), (3, forbidden)):
        if not _searches(algorithm, spec, num_objectives):
            continue
        trials = run(algorithm, spec, 10, constraint=constraint, num_objectives=num_objectives)
        for trial in trials:
            _check_legal(spec, trial.decisions)
            assert constraint(trial.decisions) is None, 'infeasible'
        assert len(_all(trials)) == len(trials), 'repeated'


def _check_legal(spec: pg.DNASpec, decisions: Decisions) -> None:
    to_dna(spec, decisions)  # Raises for an illegal decision.
    walked = decide(spec, functools.partial(_given, decisions))
    assert list(walked.items()) == list(decisions.items()), 'too many, or out of order'


def _given(decisions: Decisions, point: Any) -> Any:
    if isinstance(point, pg.geno.Float):
        number = decisions[point.id.path]
        assert type(number) is (int if is_integer(point) else float)
        return number
    return [decisions[point.subchoice(i).id.path] for i in range(point.num_choices)]


def check_suggestions_are_functions_of_the_context(
    algorithm: Algorithm, spec: pg.DNASpec, num_objectives: int = 1
) -> None:
    """Another process, after a kill, makes the same suggestion, whatever happened in between."""
    history = run(algorithm, spec, 2, constraint=forbidden, num_objectives=num_objectives)
    first = ask(algorithm, spec, history, infeasible=forbidden)
    ask(algorithm, spec, history, seed=1)
    ask(algorithm, spec, history[:1])
    again = from_json_text(to_json_text(algorithm), Algorithm, source='text')
    assert ask(again, spec, list(reversed(history)), infeasible=forbidden) == first


def check_copes_with_any_history(
    algorithm: Algorithm, spec: pg.DNASpec, num_objectives: int = 1
) -> None:
    history = run(algorithm, spec, 5, num_objectives=num_objectives)
    pending = [dataclasses.replace(trial, state='pending', scores=()) for trial in history]
    infeasible = [dataclasses.replace(trial, state='infeasible', scores=()) for trial in history]
    scores = (0.0,) * num_objectives
    tied = [dataclasses.replace(trial, state='completed', scores=scores) for trial in history]
    for trials in (pending, infeasible, tied, pending[:3] + tied[3:], infeasible[:3] + tied[3:]):
        suggestion = ask(algorithm, spec, trials)
        _check_parent(suggestion, trials)
        to_dna(spec, suggestion.decisions)
        assert suggestion.decisions not in [trial.decisions for trial in trials]


def check_earlier_studies(algorithm: Algorithm, spec: pg.DNASpec, num_objectives: int = 1) -> None:
    """Trials of earlier studies are observed, are no parents, and may be tried again."""
    earlier, own = (run(algorithm, spec, n, num_objectives=num_objectives) for n in (5, 1))
    history = [dataclasses.replace(trial, id=trial.id - 5) for trial in earlier] + own
    suggestion = ask(algorithm, spec, history)
    _check_parent(suggestion, history)
    to_dna(spec, suggestion.decisions)
    assert suggestion.decisions != history[-1].decisions


def check_covers_a_finite_space(
    algorithm: Algorithm, spec: pg.DNASpec, num_objectives: int = 1
) -> None:
    """Every feasible element is tried once; then the algorithm raises `Exhausted`."""
    everything = [tuple(each.items()) for each in enumerate_decisions(spec)]
    assert len(everything) == size(spec)
    for constraint in (_all_feasible, forbidden):
        expected = {each for each in everything if constraint(dict(each)) is None}
        assert expected
        for infeasible in (0.0, 0.5, 1.0):
            found = run(
                algorithm,
                spec,
                len(everything) + 1,
                infeasible=infeasible,
                constraint=constraint,
                num_objectives=num_objectives,
            )
            assert _all(found) == expected
            with pytest.raises(Exhausted):
                ask(algorithm, spec, found, infeasible=constraint)


def check_scales(algorithm: Algorithm) -> None:
    """First trials are spread evenly on a logarithmic scale."""
    spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-6, 1.0, 'log'), width=intv(1, 4095, 'log')))
    if not _searches(algorithm, spec):
        return
    drawn = [ask(algorithm, spec, [], seed).decisions for seed in range(64)]
    if all(decisions == drawn[0] for decisions in drawn):  # It starts in the middle.
        first = Observation(1, drawn[0], 'pending')
        drawn = [ask(algorithm, spec, [first], seed).decisions for seed in range(64)]
    if all(decisions == drawn[0] for decisions in drawn):  # It is deterministic, as a grid.
        drawn = [trial.decisions for trial in run(algorithm, spec, 64)]
    for id_, middle in (('rate', 1e-3), ('width', 64)):
        below = sum(decisions[id_] < middle for decisions in drawn)
        assert 0.25 < below / len(drawn) < 0.75, id_


def bowl_spec() -> pg.DNASpec:
    """Numbers on several scales, and a choice."""
    numbers = {f'x{i}': pg.floatv(-1.0, 1.0) for i in range(3)}
    return pg.dna_spec(
        pg.Dict(
            numbers,
            rate=pg.floatv(1e-6, 1.0, 'log'),
            width=intv(1, 1024, 'log'),
            kind=pg.oneof(list('abcd')),
        )
    )


def bowl(decisions: Decisions) -> float:
    """At most 0."""
    squares = [(decisions[f'x{i}'] - 0.3 * i) ** 2 for i in range(3)]
    squares.append((math.log10(decisions['rate']) / 3 + 4 / 3) ** 2)
    squares.append((math.log2(decisions['width']) / 5 - 6 / 5) ** 2)
    return -sum(squares) - 0.3 * (decisions['kind'] != 2)


def best_of(
    algorithm: Algorithm,
    spec: pg.DNASpec,
    score: Callable[[Decisions], float],
    count: int,
    seed: int,
) -> float:
    """The best score of `count` trials."""
    return max(trial.scores[0] for trial in searched(algorithm, spec, score, count, seed))
