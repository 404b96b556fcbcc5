"""What tests of the trainer share."""

from typing import Any

import jax
import pytest


@pytest.fixture
def compilations() -> Any:
    """Counts what XLA compiles."""
    counted: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == '/jax/core/compile/backend_compile_duration':
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counted
    jax.monitoring.unregister_event_duration_listener(listen)
