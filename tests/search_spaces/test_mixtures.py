"""Published mixtures of experts, by the closed form of their parameters."""

import pytest

from search_spaces import experts
from trainer import inspect
from trainer.inspect import layout


def mixtral(experts: int) -> int:
    """The parameters of Mixtral 8x7B with some experts in each layer."""
    attention = 2 * 4096 * 32 * 128 + 2 * 4096 * 8 * 128
    layer = attention + experts * 3 * 4096 * 14_336 + 4096 * 8 + 2 * 4096
    return 32 * layer + 2 * 32_000 * 4096 + 4096


@pytest.mark.slow
def test_mixtral_has_its_parameters_and_those_of_two_experts_are_active(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = layout(experts.Mixtral8x7B())
    assert found.num_params == pytest.approx(mixtral(8), rel=1e-3)
    assert found.num_active_params == pytest.approx(mixtral(2), rel=1e-3)
    assert found.num_params == pytest.approx(46.7e9, rel=1e-3)  # As its authors say.
    assert inspect.main(['--exp=experts.Mixtral8x7B']) == 0
    printed = capsys.readouterr().out
    assert f'{found.num_active_params:,} active for each token' in printed
    assert 'FLOPs/token' in printed
