"""Free ports of this machine."""

import contextlib
import socket


def unused_ports(count: int) -> list[int]:
    """Finds ports that nothing listens to."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(('127.0.0.1', 0))
        return [each.getsockname()[1] for each in found]


def unused_port() -> int:
    """Finds a port that nothing listens to."""
    return unused_ports(1)[0]
