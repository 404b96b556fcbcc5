"""What the tests of this directory share."""

import importlib
import pkgutil

import pytest

import paxtune
import search_spaces
import trainer


@pytest.fixture(scope='session', autouse=True)
def _everything_is_imported() -> None:
    """What flags and files name may be looked up in any module, and to import is to execute."""
    for package in (paxtune, search_spaces, trainer):
        for module in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):
            importlib.import_module(module.name)
