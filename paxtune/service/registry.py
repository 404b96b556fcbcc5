"""The studies that a service has open."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from paxtune.service.schema import Refused

MAX_STUDIES = 1000
"""How many studies a service may have open."""


class Hubs:
    """Opens the hub of a study when it is first asked for, and keeps it.

    While one study is read, which takes a while if it is large, the others are answered.

    Example:
        >>> hubs = Hubs(lambda study: [study])
        >>> hubs('a') is hubs('a')
        True
    """

    def __init__(self, make: Callable[[str], Any], max_studies: int = MAX_STUDIES) -> None:
        """Opens none yet.

        Args:
            make: opens one.
            max_studies: more are refused, as each stays in memory.
        """
        self._make, self._max_studies = make, max_studies
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._made: dict[str, Any] = {}

    def __call__(self, study: str) -> Any:
        """The hub of a study.

        Raises:
            Refused: too many are open.
        """
        hub = self._made.get(study)
        if hub is not None:
            return hub
        with self._lock:
            if study not in self._making and len(self._making) >= self._max_studies:
                raise Refused('invalid', f'the service has {self._max_studies} studies open')
            making = self._making.setdefault(study, threading.Lock())
        with making:
            if study not in self._made:
                # What could not be opened is opened again when it is asked for again.
                self._made[study] = self._make(study)
            return self._made[study]

    def opened(self) -> Mapping[str, Any]:
        """The hubs that are open, by study."""
        return dict(self._made)
