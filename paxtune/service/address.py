import dataclasses
from pathlib import Path

from paxtune.service.client import Client
from paxtune.service.schema import MalformedError
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Service:
    """A service, `python -m paxtune.serve`, and one of its studies.

    Attributes:
        endpoint: host:port.
        study: the study's name there.
        token: authenticates the caller; None for the token of this user's service, on this machine.
        tls: use TLS.
        tls_ca: the file of the authority that signed its certificate; None for public ones.
    """

    endpoint: str
    study: str
    token: str | None = dataclasses.field(default=None, repr=False)
    tls: bool = False
    tls_ca: Path | None = None

    def client(self) -> Client:
        """Makes a client; raises UserError if the endpoint or the study's name is invalid."""
        try:
            return Client(self.endpoint, self.study, self.token, tls=self.tls, ca_cert=self.tls_ca)
        except MalformedError as error:
            raise UserError(f'--study={self.study}: {error}') from None

    @property
    def worker_flags(self) -> list[str]:
        """TLS flags for a worker."""
        authority = [] if self.tls_ca is None else [f'--tls_ca={self.tls_ca}']
        return [*(['--tls'] if self.tls else []), *authority]
