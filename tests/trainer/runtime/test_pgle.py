from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.factories.tiny import experiment
from trainer import main
from trainer.program.packing.stepper import Stepper
from trainer.program.program import Program
from trainer.program.setup import localized
from trainer.runtime import pgle
from trainer.symbolic.errors import UserError


@pytest.fixture
def as_on_a_gpu() -> Iterator[None]:
    """PGLE with profiles of one run; those of a CPU are empty, and JAX says so."""
    runs = jax.config.jax_pgle_profiling_runs  # type: ignore[attr-defined]
    jax.config.update('jax_enable_pgle', True)
    jax.config.update('jax_pgle_profiling_runs', 1)
    yield
    jax.config.update('jax_enable_pgle', False)
    jax.config.update('jax_pgle_profiling_runs', runs)


@pytest.mark.pax('PGLE: run, convert')
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:PGLE collected an empty trace:RuntimeWarning')
@pytest.mark.usefixtures('as_on_a_gpu')
def test_a_step_is_compiled_again_once_it_has_been_profiled(compilations: list[str]) -> None:
    made = localized(experiment())
    program = Program(made.task, made.mesh.make(jax.devices()[:1]), made.train_input.element_spec())
    values, key = program.values(made.task), program.random_key(0)
    state: Any = program.init(key, values)
    assert pgle.is_enabled()
    counts = []
    for _ in range(4):
        batch = program.put(made.train_input.get_next())
        before = len(compilations)
        with jax.transfer_guard('disallow'):
            state, metrics = program.train_step(state, batch, key, values)
        counts.append(len(compilations) - before)
        assert metrics['loss'].mean > 0
    assert counts[0] > 0, 'compiled and profiled'
    assert counts[1] > 0, 'compiled with the profile'
    assert counts[2:] == [0, 0]
    assert not Stepper(program, state, key, values).can_do_several


def test_it_is_refused_where_it_does_nothing(tmp_path: Path) -> None:
    flags = ['--exp=lm.C4Small', f'--job_log_dir={tmp_path}', '--pgle']
    with pytest.raises(UserError, match=r'^--pgle: this needs a GPU, and JAX runs on a cpu'):
        main.main(flags)
    with pytest.raises(UserError, match=r'^--pgle is for training: leave out --mode'):
        main.main([*flags, '--mode=eval'])
    with pytest.raises(
        UserError, match=r'^--pgle profiles the first steps itself: .* --profile_steps'
    ):
        main.main([*flags, '--profile_steps=2:3'])
    assert not pgle.is_enabled()
    assert not any(tmp_path.iterdir())
