"""Where a service is, and which of its studies is meant."""

import dataclasses
from pathlib import Path

from paxtune.service.client import Client
from paxtune.service.schema import MalformedError
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Service:
    """A service that others work with, too: `python -m paxtune.serve`.

    Attributes:
        endpoint: where it is, host:port.
        study: what the study is called there.
        token: what it wants to know of who calls.
        tls: speak TLS with it.
        tls_ca: the file of the authority that has signed its certificate; None for public ones.
    """

    endpoint: str
    study: str
    token: str | None = None
    tls: bool = False
    tls_ca: Path | None = None

    def client(self) -> Client:
        """Calls it.

        Raises:
            UserError: the endpoint, or the name of the study, is none.
        """
        try:
            return Client(self.endpoint, self.study, self.token, tls=self.tls, ca_cert=self.tls_ca)
        except MalformedError as error:
            raise UserError(f'--study={self.study}: {error}') from None

    @property
    def flags_of_worker(self) -> list[str]:
        """How a worker is told to speak with it."""
        authority = [] if self.tls_ca is None else [f'--tls_ca={self.tls_ca}']
        return [*(['--tls'] if self.tls else []), *authority]
