"""Checks of `paxtune.tune` before any write, and of the names of the package."""

from pathlib import Path

import pyglove as pg
import pytest

import paxtune
from paxtune import tune
from paxtune.experiment import Tunable
from paxtune.study.plan import SearchPlan
from tests.factories.tiny import CountingInput
from tests.factories.tunables import Rates
from trainer.inputs import MixtureInput
from trainer.symbolic.errors import UserError


def test_public_objects_show_what_they_are() -> None:
    public = [getattr(paxtune, name) for name in paxtune.__all__]
    classes = [each for each in public if isinstance(each, type)]
    assert len(classes) > 10
    plain = vars(object)['__repr__']
    assert [each for each in classes if each.__repr__ is plain] == []


def mixed(weight: object) -> Tunable:
    """Trains on a mixture of two inputs, both of this weight."""
    made = Rates()
    one = made.train_input
    assert isinstance(one, CountingInput)
    mixture = MixtureInput(
        batch_size=one.batch_size,
        is_training=True,
        inputs={'a': one.clone(), 'b': one.clone()},
        weights={'a': weight, 'b': pg.clone(weight)},
    )
    return made.rebind(train_input=mixture)


def test_the_data_of_a_space_is_that_of_a_trial_whose_values_fit_together() -> None:
    choices = mixed(pg.oneof([0.0, 1.0]))  # The first choices, and the ends of ranges, do not fit.
    assert SearchPlan.compile(choices).data == SearchPlan.compile(mixed(1.0)).data
    wide = SearchPlan.compile(mixed(pg.floatv(0.0, 1.0)))
    assert wide.data == SearchPlan.compile(mixed(1.0)).data


def test_a_space_whose_values_never_fit_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'no experiment was found .* at least 0'):
        tune(mixed(pg.oneof([0.0, -1.0])), job_log_dir=tmp_path / 'job')
    assert not (tmp_path / 'job').exists()
