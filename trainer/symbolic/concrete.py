"""Concrete experiments: all decisions made, all derived values resolved."""

from typing import TypeVar

import pyglove as pg

from trainer.symbolic import overrides
from trainer.symbolic.component import Component, unchecked
from trainer.symbolic.derived import derived_values, resolve
from trainer.symbolic.errors import UserError

C = TypeVar('C', bound=Component)


def open_decisions(experiment: pg.Object) -> list[str]:
    """Lists the paths of the open decisions in an experiment."""
    primitive = pg.hyper.HyperPrimitive
    return list(pg.query(experiment, where=lambda value: isinstance(value, primitive)))


def require_concrete(experiment: pg.Object) -> None:
    """Raises UserError, with a list, if decisions are open, or derived values unresolved."""
    if paths := open_decisions(experiment):
        raise UserError(
            f'{len(paths)} decisions are left open: {", ".join(paths)}. Make them with '
            '--set path=value, or search over them with python -m paxtune.search.'
        )
    unresolved = [f'{value.sym_path}: {value}' for value in derived_values(experiment)]
    if unresolved:
        raise UserError(
            f'{len(unresolved)} derived values are not resolved: {", ".join(unresolved)}. Give '
            'values to the fields that they name.'
        )


def concrete(experiment: C) -> C:
    """Resolves the derived values of an experiment without open decisions.

    Raises:
        UserError: a decision is open, or a derived value has no result that fits.
    """
    try:
        with unchecked():
            resolved = resolve(experiment)
    except ValueError as error:
        raise UserError(str(error)) from error
    require_concrete(resolved)
    return experiment if resolved is experiment else overrides.checked(resolved)
