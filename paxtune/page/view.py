"""The contract of a view of the page."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from dash import Dash

from paxtune.page.actions import Actions
from paxtune.page.commands import StudyCommands
from paxtune.page.live import LiveStudy


@dataclasses.dataclass(frozen=True)
class Page:
    """The study of a page, the commands on it, and its changes."""

    live: LiveStudy
    commands: StudyCommands
    actions: Actions


@dataclasses.dataclass(frozen=True)
class View:
    """A view of the page.

    Attributes:
        path: its address.
        layout: makes its elements from the source, the query of the address, and its numbers;
            callbacks add live content.
        register: adds its callbacks.
        title: its name in the navigation; '' for a view that other views link to.
        numbers: a pattern of the rest of the address; its groups are numbers of trials.
    """

    path: str
    layout: Callable[..., list[Any]]
    register: Callable[[Dash, Any], None]
    title: str = ''
    numbers: str = ''

    def numbers_in(self, address: str) -> list[int | None] | None:
        """Returns the numbers of an address; None for the address of another view."""
        found = re.fullmatch(re.escape(self.path) + self.numbers, address)
        return found and [int(each) if each else None for each in found.groups()]
