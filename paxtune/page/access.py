"""Checks of requests to the study page: host, origin, and token."""

import dataclasses
import functools
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from paxtune.service import auth
from trainer.symbolic.errors import UserError

COOKIE = 'paxtune_page'
"""The name of the cookie with a token begins with it."""

_BASE_PATH = re.compile(r'/(?:(?!\.\.?/)[A-Za-z0-9._~@:+=-]+/)*')
_PUBLIC_HOST = re.compile(r'[a-z0-9-]+(\.[a-z0-9-]+)*(:[0-9]{1,5})?')
_READS = ('GET', 'HEAD', 'OPTIONS')


@dataclasses.dataclass(frozen=True)
class Access:
    """Decides which requests the page answers.

    Attributes:
        names: host names of this machine. Others may be an attacker's (DNS rebinding).
        secret: the token that each request needs.
        only_loopback: refuses addresses other than loopback.
        scheme: 'http' or 'https'.
        base_path: the path of the overview in a browser, which a proxy may have prefixed.
        public_host: NAME or NAME:PORT of a proxy that browsers open; '' without one.
    """

    names: frozenset[str]
    secret: str
    only_loopback: bool = True
    scheme: str = 'http'
    base_path: str = '/'
    public_host: str = ''

    @functools.cached_property
    def cookie(self) -> str:
        """The name of the cookie: browsers share cookies between all ports of a host."""
        return f'{COOKIE}_{hashlib.sha256(self.secret.encode()).hexdigest()[:12]}'

    def refusal(self, method: str, headers: Mapping[str, str], token: str | None) -> str | None:
        """Returns why a request is refused; None if it is answered.

        Args:
            headers: of the request, by their usual names.
            token: from its cookie or its address.

        Example:
            >>> access = Access(frozenset({'localhost'}), 'tiger')
            >>> access.refusal('GET', {'Host': 'localhost:8050'}, 'tiger')
            >>> access.refusal('GET', {'Host': 'evil.example'}, 'tiger')
            'the page has no host evil.example. A proxy needs --public_host=NAME'
        """
        host = headers.get('Host', '')
        if not self._is_expected(host):
            return f'the page has no host {host}' + (
                '' if self.public_host else '. A proxy needs --public_host=NAME'
            )
        if self.is_foreign(method, headers):
            return 'the request comes from a page of another origin'
        if token is None:
            return 'a token is missing: open the address that the command has printed'
        if not hmac.compare_digest(token.encode('utf-8', 'replace'), self.secret.encode()):
            return 'the token is wrong: open the address that the command has printed'
        return None

    def is_foreign(self, method: str, headers: Mapping[str, str]) -> bool:
        """Returns True if a page of another origin made the request.

        A link from such a page may lead here: a browser then says that it navigates.
        """
        site = headers.get('Sec-Fetch-Site', 'none')
        own = self._origins(headers.get('Host', ''))
        if method not in _READS:
            # A browser names the origin of each request that may change something.
            return headers.get('Origin') not in own or site not in ('same-origin', 'none')
        is_navigation = (
            headers.get('Sec-Fetch-Mode') == 'navigate'
            and headers.get('Sec-Fetch-Dest') == 'document'
        )
        is_other = headers.get('Origin') not in {None, *own} or site not in ('same-origin', 'none')
        return is_other and not is_navigation

    def _origins(self, host: str) -> set[str]:
        """The origins of the page's own requests, which a proxy may have forwarded."""
        origins = {f'{self.scheme}://{host}'}
        if self.public_host:
            is_public = _name(host) == _name(self.public_host)
            hosts = {self.public_host, host} if is_public else {self.public_host}
            # A proxy may add TLS.
            origins |= {f'{scheme}://{each}' for each in hosts for scheme in ('http', 'https')}
        return origins

    def _is_expected(self, host: str) -> bool:
        if not (name := _name(host)):
            return False
        if self.public_host and name == _name(self.public_host):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        # An address cannot be pointed elsewhere.
        return not self.only_loopback or auth.is_loopback(name)


def access_rule(
    host: str, secret: str, is_tls: bool, base_path: str = '/', public_host: str = ''
) -> Access:
    """Makes the rule for a page at an address to listen at: see `Access`."""
    is_loopback = auth.is_loopback(host)
    others = set() if is_loopback else {host, socket.gethostname(), socket.getfqdn()}
    names, scheme = frozenset({'localhost'} | others), 'https' if is_tls else 'http'
    return Access(names, secret, is_loopback, scheme, base_path, public_host)


def base_path(given: str) -> str:
    """Returns a path that ends with `/`; raises UserError for text that is no plain path.

    Example:
        >>> base_path('/tuner'), base_path('/')
        ('/tuner/', '/')
    """
    path = f'{given.rstrip("/")}/'
    if not _BASE_PATH.fullmatch(path):
        raise UserError(
            f'--base_path={given}: expected the path below which a proxy has the page, such as '
            '/tuner/: letters, digits and . _ ~ @ : + = - between slashes'
        )
    return path


def public_host(given: str) -> str:
    """Returns a host of a proxy in small letters; raises UserError for other text.

    Example:
        >>> public_host('Tuner.example.com')
        'tuner.example.com'
    """
    host = given.lower()
    if host and not _PUBLIC_HOST.fullmatch(host):
        raise UserError(
            f'--public_host={given}: expected the host in the address of browsers, such as '
            'tuner.example.com or tuner.example.com:8443'
        )
    return host


def _name(host: str) -> str:
    """The name in NAME or NAME:PORT; '' for other text."""
    try:
        return urlsplit(f'//{host}').hostname or ''
    except ValueError:
        return ''
