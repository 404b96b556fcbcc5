"""A process that makes many calls at the same time, over many connections.

`python -m tests.factories.call_flood PORT TOKEN CONNECTIONS` reads calls, a JSON list of paths and
messages in base64, or null for a call without a message. It prints the names of their codes.
"""

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import grpc

Call = tuple[str, bytes | None]


def codes(port: int, token: str, calls: Sequence[Call], connections: int = 64) -> list[str]:
    """Makes calls of a method's path and a message from another process; returns their codes."""
    sent = [
        (path, None if message is None else base64.b64encode(message).decode())
        for path, message in calls
    ]
    done = subprocess.run(
        [sys.executable, '-m', __name__, str(port), token, str(connections)],
        input=json.dumps(sent),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))


async def _call(channel: Any, token: str, path: str, message: str | None) -> str:
    call = channel.stream_unary(path)(metadata=(('authorization', f'Bearer {token}'),))
    with contextlib.suppress(grpc.RpcError):
        if message is not None:
            await call.write(base64.b64decode(message))
            await call.done_writing()
        await call
    return str((await call.code()).name)


async def _main(port: str, token: str, connections: str) -> None:
    options = [('grpc.use_local_subchannel_pool', 1)]
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f'127.0.0.1:{port}', options))
            for _ in range(int(connections))
        ]
        calls = [
            _call(channels[number % len(channels)], token, *each)
            for number, each in enumerate(json.load(sys.stdin))
        ]
        print(json.dumps(await asyncio.gather(*calls)))


if __name__ == '__main__':
    asyncio.run(_main(*sys.argv[1:]))
