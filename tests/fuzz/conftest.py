"""Fixtures of this directory."""

import importlib
import pkgutil

import pytest

import paxtune
import search_spaces
import trainer


@pytest.fixture(scope='session', autouse=True)
def _everything_is_imported() -> None:
    """Imports every module first: a name in a flag or a file may import one, which executes it."""
    for package in (paxtune, search_spaces, trainer):
        for module in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):
            importlib.import_module(module.name)
