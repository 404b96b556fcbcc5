"""The goal of `benchmarks/packing.py`, its sizes, and the cells that it leaves out."""

import jax
import pytest

from benchmarks import packing
from benchmarks.reference_loss import experiment
from trainer.inputs.text.stdlib import StdlibInput
from trainer.program.costs import static_costs
from trainer.program.setup import compiled, localized


@pytest.mark.parametrize(('ratio', 'met'), [(0.95, True), (1.4, True), (0.949, False)])
def test_packing_goal_is_about_auto_alone(ratio: float, met: bool) -> None:
    assert packing.is_met({'auto_to_off': ratio, '4_to_off': 0.1}) == met


def test_packing_sizes_are_those_of_their_names() -> None:
    data = StdlibInput(batch_size=1, is_training=True, sequence_length=64, split='train')
    for case, millions in zip(packing.CASES, (0.1, 1.0, 10.0), strict=True):
        program, _ = compiled(localized(experiment(data, case.shape)))
        assert program.num_params() / 1e6 == pytest.approx(millions, rel=0.2)


@pytest.mark.slow
def test_packing_adapters_are_beside_smollm2() -> None:
    costs = static_costs(localized(packing.ADAPTERS.made()))
    assert costs['num_params'] / 1e6 == pytest.approx(134.5 + 4.9, rel=0.01)


def test_packing_leaves_out_what_is_too_slow_or_too_large(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert packing.require_short(packing.LONGEST) == packing.LONGEST
    with pytest.raises(packing.LeftOutError, match='takes 21 s'):
        packing.require_short(21.0)
    step = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((1024,), 'float32')).compile()
    assert packing.memory_of(step) >= 8192
    with pytest.raises(packing.LeftOutError, match='GiB'):
        packing.memory_of(step, available=10_000)
    assert packing.compare_steps(packing.CASES[0], 4, rounds=1, available=10_000) == {}
    assert 'left out: needs' in capsys.readouterr().out
