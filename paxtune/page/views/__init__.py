"""The views of the page: a file is a view, and has it as `VIEW`."""

import importlib
import pkgutil

from paxtune.page.view import View


def views() -> list[View]:
    """Finds the views of all files, in the order of the navigation."""
    names = [each.name for each in pkgutil.iter_modules(__path__)]
    found = [importlib.import_module(f'{__name__}.{name}').VIEW for name in names]
    return sorted(found, key=lambda view: view.place)
