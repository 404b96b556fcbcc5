"""Checks of requests to the study page: host, origin, and token."""

import dataclasses
import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from paxtune.service import auth

COOKIE = 'paxtune_page'
"""Name of the cookie with the token."""

_READS = ('GET', 'HEAD', 'OPTIONS')


@dataclasses.dataclass(frozen=True)
class Access:
    """Decides which requests the page answers.

    Attributes:
        names: host names of this machine. Others may be an attacker's (DNS rebinding).
        only_loopback: refuses addresses other than loopback.
        secret: the token that each request needs; None if requests need none.
        scheme: 'http' or 'https'.
    """

    names: frozenset[str]
    only_loopback: bool = True
    secret: str | None = None
    scheme: str = 'http'

    def refusal(self, method: str, headers: Mapping[str, str], token: str | None) -> str | None:
        """Returns why a request is refused; None if it is answered.

        Args:
            headers: of the request, by their usual names.
            token: from its cookie or its address.

        Example:
            >>> access = Access(frozenset({'localhost'}))
            >>> access.refusal('GET', {'Host': 'localhost:8050'}, None)
            >>> access.refusal('GET', {'Host': 'evil.example'}, None)
            'the page has no host evil.example'
        """
        host = headers.get('Host', '')
        if not self._is_expected(host):
            return f'the page has no host {host}'
        if self.is_foreign(method, headers):
            return 'the request comes from a page of another origin'
        if not self.has_token(token):
            return 'a token is missing: open the address that the command has printed'
        return None

    def is_foreign(self, method: str, headers: Mapping[str, str]) -> bool:
        """Returns True if a page of another origin made the request.

        A link from such a page may lead here: a browser then says that it navigates.
        """
        site = headers.get('Sec-Fetch-Site', 'none')
        own = f'{self.scheme}://{headers.get("Host", "")}'
        if method not in _READS:
            # A browser names the origin of each request that may change something.
            return headers.get('Origin') != own or site not in ('same-origin', 'none')
        is_navigation = (
            headers.get('Sec-Fetch-Mode') == 'navigate'
            and headers.get('Sec-Fetch-Dest') == 'document'
        )
        is_other = headers.get('Origin', own) != own or site not in ('same-origin', 'none')
        return is_other and not is_navigation

    def has_token(self, token: str | None) -> bool:
        """Returns True if no token is needed, or the token is right; in constant time."""
        if self.secret is None:
            return True
        return token is not None and hmac.compare_digest(token.encode(), self.secret.encode())

    def _is_expected(self, host: str) -> bool:
        try:
            name = urlsplit(f'//{host}').hostname or ''
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        # An address cannot be pointed elsewhere.
        return not self.only_loopback or auth.is_loopback(name)
