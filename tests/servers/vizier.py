"""Vizier's own server in a process of its own: `python -m … FILE PORT`, on an SQLite file.

Prints its address, and ends when its input does. (Importing its servicer changes JAX for the whole
process.)
"""

import sys
from typing import Any

from vizier.service import servers

if __name__ == '__main__':
    _, file, port = sys.argv
    more: dict[str, Any] = {'port': int(port)} if int(port) else {}
    server = servers.DefaultVizierServer('127.0.0.1', database_url=f'sqlite:///{file}', **more)
    print(server.endpoint, flush=True)
    sys.stdin.read()
