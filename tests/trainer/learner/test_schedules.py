"""Schedules equal those of optax, of papers and of Pax."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.optimizer_suite import check_schedule
from trainer.learner import (
    Constant,
    Cosine,
    Cycle,
    DecayAtRungs,
    Exponential,
    LinearSchedule,
    Noam,
    Piecewise,
    PiecewiseConstant,
    Polynomial,
    Scaled,
    Schedule,
    SqrtDecay,
)
from trainer.symbolic.component import key, numbers

SCHEDULES = [
    Constant(),
    Cosine(decay_steps=50, final_factor=0.1, hold_steps=10),
    Cycle(
        schedules=[
            LinearSchedule(hold_steps=4, decay_steps=20),
            Scaled(schedule=Constant(), scale=0.1),
        ],
        steps=[20, 9],
    ),
    DecayAtRungs(ends=[20, 50], final_factor=0.1),
    DecayAtRungs(
        ends=[20, 30, 50], decay_share=0.5, final_factor=0.2, shape='cosine', rewarm_steps=3
    ),
    Exponential(decay_steps=50),
    LinearSchedule(decay_steps=50, final_factor=0.2),
    Noam(warmup_steps=9, model_dims=16),
    Piecewise(
        schedules=[Constant(), Cosine(warmup_steps=3, decay_steps=20), SqrtDecay()],
        boundaries=[6, 30],
    ),
    PiecewiseConstant(boundaries=[6, 30], values=[1.0, 0.5, 0.0]),
    Polynomial(decay_steps=50, power=1.5),
    Polynomial(decay_steps=50, power=3.0, origin='start', hold_steps=8),
    Scaled(schedule=Polynomial(decay_steps=50, hold_steps=4), scale=0.3),
    SqrtDecay(),
    SqrtDecay(decay_start=20),
]


def ids(schedules: list[Schedule]) -> list[str]:
    return [f'{i}_{type(schedule).__name__}' for i, schedule in enumerate(schedules)]


def factors(schedule: Schedule, count: int = 40) -> list[float]:
    return [float(schedule.factor(jnp.int32(step))) for step in range(count)]


@pytest.mark.parametrize('schedule', SCHEDULES, ids=ids(SCHEDULES))
def test_schedules_conform(schedule: Schedule) -> None:
    check_schedule(schedule)


@pytest.mark.pax('`Linear`', '`Polynomial`', '`Exponential`', 'DelayedCosine', 'PiecewiseConstant')
@pytest.mark.pax('`Constant`', 'PiecewiseSchedule', 'CycleSchedule')
@pytest.mark.parametrize(
    ('ours', 'theirs'),
    [
        (LinearSchedule(decay_steps=20, final_factor=0.1), optax.linear_schedule(1.0, 0.1, 20)),
        (Cosine(decay_steps=20, final_factor=0.1), optax.cosine_decay_schedule(1.0, 20, 0.1)),
        (
            Polynomial(decay_steps=20, power=2.0, final_factor=0.1, hold_steps=5),
            optax.polynomial_schedule(1.0, 0.1, 2.0, 15, 5),
        ),
        (
            Exponential(decay_steps=20, final_factor=0.25, hold_steps=4),
            optax.exponential_decay(1.0, 16, 0.25, transition_begin=4, end_value=0.25),
        ),
        (
            PiecewiseConstant(boundaries=[5, 20], values=[1.0, 0.1, 0.05]),
            optax.piecewise_constant_schedule(1.0, {5: 0.1, 20: 0.5}),
        ),
        (Scaled(schedule=Constant(), scale=0.3), optax.constant_schedule(0.3)),
        (
            Piecewise(
                schedules=[Constant(), Cosine(decay_steps=10), LinearSchedule(decay_steps=6)],
                boundaries=[5, 20],
            ),
            optax.join_schedules(
                [
                    optax.constant_schedule(1.0),
                    optax.cosine_decay_schedule(1.0, 10),
                    optax.linear_schedule(1.0, 0.0, 6),
                ],
                [5, 20],
            ),
        ),
        (
            Cycle(schedules=[Cosine(decay_steps=10)], steps=[10]),
            optax.sgdr_schedule(
                [
                    {
                        'init_value': 1.0,
                        'peak_value': 1.0,
                        'warmup_steps': 0,
                        'decay_steps': 10,
                        'end_value': 0.0,
                    }
                ]
                * 4
            ),
        ),
    ],
    ids=['linear', 'cosine', 'polynomial', 'exponential', 'constant', 'scaled', 'joined', 'cycle'],
)
def test_schedules_equal_those_of_optax(ours: Schedule, theirs: Callable[[Any], Any]) -> None:
    wanted = [float(theirs(step)) for step in range(40)]
    np.testing.assert_allclose(factors(ours), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.pax('LinearRampupPolynomialDecay', 'ContinuousSchedule', 'DelayedCosine')
@pytest.mark.pax('`Polynomial`')
@given(
    warmup=st.integers(0, 50),
    hold=st.integers(0, 50),
    length=st.integers(1, 50),
    final=st.floats(0.01, 1),
    step=st.integers(0, 200),
)
def test_decays_after_a_warm_up_are_paxs(
    warmup: int, hold: int, length: int, final: float, step: int
) -> None:
    # LinearRampup{Linear,Cosine,Exponential,Polynomial}Decay and DelayedCosine: decay_start is
    # warmup + hold, decay_end that + length. Only the ramp begins one step higher: not at 0.
    start = warmup + hold
    done = min(max((step - start) / length, 0), 1)
    remaining = {
        LinearSchedule: final + (1 - final) * (1 - done),
        Cosine: final + (1 - final) * (1 + np.cos(np.pi * done)) / 2,
        Exponential: final**done,
        Polynomial: 1 + (final - 1) * done**3,
    }
    for kind, wanted in remaining.items():
        fields: dict[str, Any] = {'power': 3.0, 'origin': 'start'} if kind is Polynomial else {}
        schedule = kind(
            warmup_steps=warmup,
            hold_steps=hold,
            decay_steps=start + length,
            final_factor=final,
            **fields,
        )
        ramp = min(1, (step + 1) / max(warmup, 1))
        got = float(schedule.factor(jnp.int32(step)))
        np.testing.assert_allclose(got, ramp * wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.pax('LinearRampupSqrtDecay', '`Transformer`')
def test_square_root_decays_are_those_of_the_papers() -> None:
    step = np.arange(40)
    vaswani = 16**-0.5 * np.minimum((step + 1) ** -0.5, (step + 1) * 9**-1.5)
    np.testing.assert_allclose(factors(Noam(warmup_steps=9, model_dims=16)), vaswani, rtol=1e-5)
    # Pax's LinearRampupSqrtDecay is that, relative to its peak.
    peak = vaswani.max()
    np.testing.assert_allclose(factors(SqrtDecay(warmup_steps=9)), vaswani / peak, rtol=1e-5)
    # T5 (Raffel et al. 2020): 1 / sqrt(max(n, k)), here relative to its start.
    t5 = np.sqrt(10 / np.maximum(step + 1, 10))
    np.testing.assert_allclose(factors(SqrtDecay(decay_start=10)), t5, rtol=1e-5)


@pytest.mark.pax('`PiecewiseConstant`')
def test_a_staircase_after_a_warm_up_is_resnets() -> None:
    # Pax's LinearRampupPiecewiseConstant(boundaries=[4, 10, 20], values=[1, .1, .01]).
    stairs = PiecewiseConstant(warmup_steps=4, boundaries=[10, 20], values=[1.0, 0.1, 0.01])
    wanted = [0.25, 0.5, 0.75] + [1.0] * 7 + [0.1] * 10 + [0.01] * 20
    np.testing.assert_allclose(factors(stairs), wanted, rtol=1e-6)


@pytest.mark.pax('Warm-up, stable, decay')
def test_warm_up_stable_decay() -> None:
    schedule = LinearSchedule(warmup_steps=10, hold_steps=20, decay_steps=40)
    got = factors(schedule, 45)
    np.testing.assert_allclose(got[:10], np.arange(1, 11) / 10, rtol=1e-6)
    assert set(got[10:31]) == {1.0} and got[35] == 0.5 and got[40:] == [0.0] * 5


@pytest.mark.pax('Decay at each of')
@pytest.mark.parametrize(('shape', 'decay'), [('linear', LinearSchedule), ('cosine', Cosine)])
@given(
    warmup=st.integers(0, 9),
    length=st.integers(1, 30),
    share=st.sampled_from([0.2, 0.5, 1.0]),
    final=st.floats(0, 1),
    step=st.integers(0, 99),
)
@pytest.mark.fast(1)
def test_the_schedule_up_to_the_first_rung_ends_there(
    shape: Any, decay: Any, warmup: int, length: int, share: float, final: float, step: int
) -> None:
    end = warmup + 10 * length
    fields: dict[str, Any] = {'warmup_steps': warmup, 'final_factor': final}
    hold = 10 * length - round(share * 10 * length)
    ends_there = decay(decay_steps=end, hold_steps=hold, **fields)
    several, one = (
        DecayAtRungs(ends=ends, decay_share=share, shape=shape, **fields)
        for ends in ([end, end + 7], [end])
    )
    for at in {min(step, end - 1), end - 1}:
        wanted = float(ends_there.factor(jnp.int32(at)))
        assert float(several.factor(jnp.int32(at))) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    # Training ends at the last rung.
    wanted = float(ends_there.factor(jnp.int32(step)))
    assert float(one.factor(jnp.int32(step))) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_the_schedule_continues_after_a_rung_without_the_decay() -> None:
    schedule = DecayAtRungs(
        warmup_steps=4, ends=[10, 20], decay_share=0.5, final_factor=0.1, rewarm_steps=2
    )
    first = [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.4]
    second = [0.55, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.775, 0.55, 0.325]
    np.testing.assert_allclose(factors(schedule), [*first, *second, *[0.1] * 20], rtol=1e-5)


def test_rungs_share_a_program() -> None:
    fields: dict[str, Any] = {'final_factor': 0.1, 'rewarm_steps': 1, 'decay_share': 0.3}
    one, other = DecayAtRungs(ends=[4, 8]), DecayAtRungs(ends=[5, 25], **fields)
    assert key(one) == key(other)
    assert {'ends[0]', 'ends[1]', *fields} < numbers(one).keys()
    assert key(one) != key(DecayAtRungs(ends=[4, 8, 12]))


@pytest.mark.parametrize(
    'make',
    [
        lambda: DecayAtRungs(ends=[]),
        lambda: DecayAtRungs(ends=[0]),
        lambda: DecayAtRungs(ends=[5, 5]),
        lambda: DecayAtRungs(ends=[5], warmup_steps=5),
        lambda: DecayAtRungs(ends=[5, 8], rewarm_steps=3),
        lambda: DecayAtRungs(ends=[5, 8], rewarm_steps=-1),
        lambda: DecayAtRungs(ends=[5], decay_share=0.0),
        lambda: DecayAtRungs(ends=[5], decay_share=1.1),
        lambda: DecayAtRungs(ends=[5], final_factor=-0.1),
        lambda: LinearSchedule(decay_steps=5, hold_steps=5),
        lambda: LinearSchedule(decay_steps=5, hold_steps=-1),
        lambda: Exponential(decay_steps=5, final_factor=0.0),
        lambda: Polynomial(decay_steps=5, power=0.0),
        lambda: SqrtDecay(decay_start=-1),
        lambda: Noam(),
        lambda: Noam(warmup_steps=1, model_dims=0),
        lambda: PiecewiseConstant(boundaries=[5], values=[1.0]),
        lambda: PiecewiseConstant(boundaries=[5, 5], values=[1.0, 0.5, 0.1]),
        lambda: PiecewiseConstant(boundaries=[0], values=[1.0, 0.5]),
        lambda: Piecewise(schedules=[Constant()], boundaries=[3]),
        lambda: Cycle(schedules=[], steps=[]),
        lambda: Cycle(schedules=[Constant()], steps=[0]),
        lambda: Cycle(schedules=[Constant()], steps=[1, 2]),
        lambda: Scaled(schedule=Constant(), scale=-1.0),
    ],
)
def test_impossible_values_are_refused(make: Callable[[], Schedule]) -> None:
    with pytest.raises(ValueError, match='must'):
        make()
