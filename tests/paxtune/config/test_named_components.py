import pytest

from paxtune.algorithms import Algorithm, Default, GPBandit, Grid
from paxtune.algorithms.external.vizier_names import VIZIER_NAMES
from paxtune.config.named_components import component
from paxtune.schedulers import Scheduler
from trainer.symbolic.errors import UserError


@pytest.mark.parametrize('name', VIZIER_NAMES)
def test_each_name_of_vizier_makes_an_algorithm(name: str) -> None:
    assert isinstance(component(Algorithm, name, '--algorithm'), Algorithm)


def test_names_of_vizier_stand_for_the_algorithms_that_are_like_theirs() -> None:
    assert isinstance(component(Algorithm, 'DEFAULT', '--algorithm'), Default)
    found = component(Algorithm, 'GP_UCB_PE', '--algorithm')
    assert isinstance(found, GPBandit) and found.acquisition == 'ucb_pe'
    grid = component(Algorithm, 'SHUFFLED_GRID_SEARCH', '--algorithm')
    assert isinstance(grid, Grid) and grid.shuffle


def test_names_of_vizier_without_a_counterpart_are_rejected() -> None:
    with pytest.raises(UserError, match='there is no HARMONICA here'):
        component(Algorithm, 'HARMONICA', '--algorithm=HARMONICA')
    with pytest.raises(UserError, match='expected one of adaptive, asha'):
        component(Scheduler, 'DEFAULT', '--scheduler=DEFAULT')
