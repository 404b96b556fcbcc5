"""Google Cloud Storage on this machine, from the `gcp-storage-emulator` wheel, for tests.

    with Emulator.started() as emulator:
        os.environ.update(emulator.environment)
        epath.Path(f'{emulator.bucket}/file').write_text('here')

It keeps what it is given in memory. It is one server of HTTP, which answers one request at a time,
and it does not look at conditions (`ifGenerationMatch`), nor at credentials.
"""

import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tools.servers.ports import unused_port

_PATIENCE = 60.0
_BUCKET = 'tests'


class EmulatorMissingError(Exception):
    """No emulator can be started on this machine."""


class Emulator:
    """An emulator that runs.

    Attributes:
        bucket: the one that there is.
        environment: the variables with which a process finds it.
    """

    def __init__(self, port: int) -> None:
        """One that listens on a port of 127.0.0.1."""
        url = f'http://127.0.0.1:{port}'
        self.bucket = f'gs://{_BUCKET}'
        self.environment = {
            'STORAGE_EMULATOR_HOST': url,
            'TENSORSTORE_GCS_HTTP_URL': url,
            # Neither tensorstore nor gcsfs shall look for credentials.
            'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'not-a-secret',
            'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false',
        }

    @classmethod
    @contextlib.contextmanager
    def started(cls, directory: Path) -> Iterator['Emulator']:
        """One that runs until the end.

        Args:
            directory: for its log.

        Raises:
            EmulatorMissingError: it cannot be started on this machine.
        """
        for name in ('gcp_storage_emulator', 'gcsfs'):
            if importlib.util.find_spec(name) is None:
                raise EmulatorMissingError(f'{name} is not installed: pip install -e .[dev]')
        port = unused_port()
        command = [sys.executable, '-m', 'gcp_storage_emulator', 'start', '--in-memory', '--quiet']
        command += ['--host=127.0.0.1', f'--port={port}', f'--default-bucket={_BUCKET}']
        log = directory / 'log'
        with (
            open(log, 'wb') as file,
            # Ctrl-C is not for the emulator.
            subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True) as process,
        ):
            try:
                deadline = time.monotonic() + _PATIENCE
                while not _answers(port):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise EmulatorMissingError(log.read_text())
                    time.sleep(0.02)
                yield cls(port)
            finally:
                process.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(('127.0.0.1', port)).close()
    except ConnectionRefusedError:
        return False
    return True
