"""The number of examples of a property test."""

from typing import Any

from hypothesis import settings


def examples(count: int, **others: Any) -> settings:
    """Tries `count` examples in `.ci/full`, and a quarter of them in the fast suite."""
    assert settings.default is not None
    return settings(max_examples=max(1, count * settings.default.max_examples // 100), **others)
