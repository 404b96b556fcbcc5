"""S3 on this machine, from moto's server, for tests."""

import contextlib
import os
from collections.abc import Iterator

import fsspec
import pytest
from moto.server import ThreadedMotoServer

_BUCKET = 'tests'


@contextlib.contextmanager
def started() -> Iterator[str]:
    """Starts a server with one bucket, and sets the variables with which libraries find it.

    Yields:
        The URL of the bucket.
    """
    server = ThreadedMotoServer('127.0.0.1', port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('AWS_ENDPOINT_URL', f'http://{host}:{port}')
        patch.setenv('AWS_ACCESS_KEY_ID', 'testing')
        patch.setenv('AWS_SECRET_ACCESS_KEY', 'testing')
        patch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
        patch.setenv('AWS_CONFIG_FILE', os.devnull)
        fsspec.filesystem('s3').mkdir(_BUCKET)
        try:
            yield f's3://{_BUCKET}'
        finally:
            server.stop()
