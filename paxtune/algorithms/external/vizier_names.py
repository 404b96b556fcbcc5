"""Vizier's names of algorithms, and the algorithms that they stand for here."""

from trainer.symbolic.errors import UserError

VIZIER_NAMES = {
    'ALGORITHM_UNSPECIFIED': 'Default()',
    'DEFAULT': 'Default()',
    'GP_UCB_PE': "GPBandit(acquisition='ucb_pe')",
    'GAUSSIAN_PROCESS_BANDIT': 'GPBandit()',
    'GP_BANDIT': 'GPBandit()',  # In `vizier.pyglove`.
    'RANDOM_SEARCH': 'RandomSearch()',
    'QUASI_RANDOM_SEARCH': 'QuasiRandom()',
    'GRID_SEARCH': 'Grid(points_per_range=10)',
    'SHUFFLED_GRID_SEARCH': 'Grid(points_per_range=10, shuffle=True)',
    'NSGA2': 'NSGA2()',
    'CMA_ES': 'CMAES()',
    'CMAES': 'CMAES()',
    'EAGLE_STRATEGY': 'Eagle()',
}
"""Components in the syntax of `--set`, by Vizier's name. A grid has as many points as Vizier's."""

_WITHOUT_COUNTERPART = ('BOCS', 'HARMONICA')


def translated(name: str, where: str) -> str:
    """Translates Vizier's name of an algorithm; any other text is returned unchanged.

    Raises:
        UserError: Vizier has the algorithm, and there is none like it here.

    Example:
        >>> translated('CMA_ES', '--algorithm=CMA_ES')
        'CMAES()'
        >>> translated('grid', '--algorithm=grid')
        'grid'
        >>> translated('BOCS', '--algorithm=BOCS')
        Traceback (most recent call last):
        ...
        trainer.symbolic.errors.UserError: --algorithm=BOCS: there is no BOCS here. Use one of ...
    """
    if name in _WITHOUT_COUNTERPART:
        raise UserError(f'{where}: there is no {name} here. Use one of {", ".join(VIZIER_NAMES)}')
    return VIZIER_NAMES.get(name, name)
