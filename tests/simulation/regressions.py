"""Seeds that once violated an invariant: `test_simulation` simulates them again."""

from collections.abc import Mapping

REGRESSIONS: Mapping[int, str] = {}
"""The reason, by seed."""
