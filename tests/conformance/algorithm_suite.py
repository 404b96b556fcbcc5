"""What any algorithm must do. Use: `check_algorithm(algorithm)`, in a test of the algorithm."""

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyglove as pg

from paxtune.algorithms import Algorithm, PastTrial, Request, Suggestion
from paxtune.decisions import Decisions, decide, to_dna
from trainer.serialization import from_json_text, to_json_text


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


SPACES: Sequence[Callable[[], Any]] = (log_range, conditional, several, small)


def merit(decisions: Decisions) -> float:
    """Some reward for any decisions."""
    return math.fsum(math.sin(7 * value + len(id_)) for id_, value in decisions.items())


def past(number: int, suggestion: Suggestion, infeasible: bool = False) -> PastTrial:
    """A trial that has ended."""
    if infeasible:
        return PastTrial(number, suggestion.decisions, 'infeasible')
    return PastTrial(number, suggestion.decisions, 'completed', merit(suggestion.decisions))


def ask(
    algorithm: Algorithm, spec: pg.DNASpec, history: Sequence[PastTrial], seed: int = 0
) -> Suggestion:
    """The trial after those of `history`."""
    return algorithm.suggest(Request(spec, seed, len(history) + 1, lambda: list(history)))


def run(
    algorithm: Algorithm, spec: pg.DNASpec, count: int, seed: int = 0, infeasible: float = 0.2
) -> list[PastTrial]:
    """A study of `count` trials, some of which turn out infeasible."""
    rng = random.Random(seed)
    history: list[PastTrial] = []
    for number in range(1, count + 1):
        suggestion = ask(algorithm, spec, history, seed)
        history.append(past(number, suggestion, rng.random() < infeasible))
    return history


def check_algorithm(algorithm: Algorithm) -> None:
    """Everything below."""
    check_json(algorithm)
    check_tries_all_of_a_small_space(algorithm)
    for make in SPACES:
        spec = pg.dna_spec(make())
        check_suggestions_are_legal(algorithm, spec)
        check_suggestions_are_functions_of_the_request(algorithm, spec)
        check_copes_with_any_history(algorithm, spec)


def check_json(algorithm: Algorithm) -> None:
    text = to_json_text(algorithm)
    assert pg.eq(from_json_text(text, Algorithm, source='text'), algorithm)


def check_suggestions_are_legal(algorithm: Algorithm, spec: pg.DNASpec) -> None:
    trials = run(algorithm, spec, 6 if spec.space_size == 6 else 20)
    for trial in trials:
        to_dna(spec, trial.decisions)  # Raises where a decision is not legal.
        walked = decide(spec, functools.partial(_given, trial.decisions))
        assert list(walked.items()) == list(trial.decisions.items()), 'too many, or out of order'
    assert len({tuple(trial.decisions.items()) for trial in trials}) == len(trials), 'repeated'


def _given(decisions: Decisions, point: Any) -> Any:
    if isinstance(point, pg.geno.Float):
        return decisions[point.id.path]
    return [decisions[point.subchoice(i).id.path] for i in range(point.num_choices)]


def check_suggestions_are_functions_of_the_request(algorithm: Algorithm, spec: pg.DNASpec) -> None:
    """After a kill, another process asks again: the same comes, whatever was asked in between."""
    history = run(algorithm, spec, 5)
    first = ask(algorithm, spec, history)
    ask(algorithm, spec, history, seed=1)
    ask(algorithm, spec, history[:2])
    again = from_json_text(to_json_text(algorithm), Algorithm, source='text')
    assert ask(again, spec, list(reversed(history))) == first


def check_copes_with_any_history(algorithm: Algorithm, spec: pg.DNASpec) -> None:
    history = run(algorithm, spec, 5)
    pending = [dataclasses.replace(trial, state='pending', score=None) for trial in history]
    infeasible = [dataclasses.replace(trial, state='infeasible', score=None) for trial in history]
    tied = [dataclasses.replace(trial, state='completed', score=0.0) for trial in history]
    for trials in (pending, infeasible, tied, pending[:3] + tied[3:]):
        suggestion = ask(algorithm, spec, trials)
        to_dna(spec, suggestion.decisions)
        assert suggestion.decisions not in [trial.decisions for trial in trials]


def check_tries_all_of_a_small_space(algorithm: Algorithm) -> None:
    spec = pg.dna_spec(small())
    for infeasible in (0.0, 1.0):
        trials = run(algorithm, spec, 6, infeasible=infeasible)
        assert len({tuple(trial.decisions.items()) for trial in trials}) == 6
