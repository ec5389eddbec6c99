"""Proxies before the server: the client's address and scheme that a trusted one tells.

Without ``--trusted-proxies`` no header changes who a client is. ``X-Forwarded-Host``, ``-Port`` and
``-Prefix`` never change anything.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from oxillama.base.config.server import UNIX, network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MOST_HOPS = 64
"""Entries of a header that are read, from the last one on."""


class Proxies:
    """A middleware that takes the client of a request from the headers of trusted proxies.

    Args:
        trusted: addresses and networks of proxies; "unix" for whoever connects to a Unix socket.
    """

    def __init__(self, app: ASGIApp, trusted: Iterable[str]) -> None:
        names = list(trusted)
        self.app = app
        self._unix = UNIX in names
        self._networks = [network(name) for name in names if name != UNIX]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            peer = address_of((scope.get("client") or ("",))[0].partition("%")[0])  # without a zone
            if self._unix if peer is None else self._is_trusted(peer):
                scope = {**scope, **self._told(Headers(scope=scope), peer)}
        await self.app(scope, receive, send)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in each for each in self._networks)

    def _told(self, headers: Headers, peer: Address | None) -> Scope:
        """The client and the scheme that the headers of a trusted peer tell.

        Headers that name different clients count for nothing: a proxy writes one of them, and passes on the
        other as the client sent it.
        """
        pairs = [pairs_of(part) for part in entries(headers, "forwarded")]
        hops = entries(headers, "x-forwarded-for")
        chains = [hops, [pair.get("for", "") for pair in pairs]]
        found = {self._client(chain) for chain in chains if any(chain)} - {None}
        told: Scope = {}
        if len(found) == 1:
            told["client"] = (str(found.pop()), 0)
        schemes = {headers.get("x-forwarded-proto", "").strip().lower(), pairs[-1].get("proto", "").lower()}
        schemes &= {"http", "https"}
        if len(schemes) == 1:
            told["scheme"] = schemes.pop()
        return told

    def _client(self, hops: list[str]) -> Address | None:
        """The last address of no trusted proxy, else the first address; None if there is no address."""
        found = None
        for hop in reversed(hops):
            address = address_of(without_port(hop.strip()))
            if address is None:
                return found
            found = address
            if not self._is_trusted(address):
                break
        return found


def entries(headers: Headers, name: str) -> list[str]:
    """The last entries of a header that may come several times."""
    return ",".join(headers.getlist(name)).rsplit(",", MOST_HOPS)[-MOST_HOPS:]


def pairs_of(part: str) -> dict[str, str]:
    """The pairs of an entry of ``Forwarded`` (RFC 7239, 4), with lower-case names."""
    pairs = (pair.partition("=") for pair in part.split(";"))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}


def without_port(text: str) -> str:
    """The address of "192.0.2.1:80", "[2001:db8::1]:80" and the like."""
    bracketed = re.fullmatch(r"\[([^\]]*)\](:\d{1,5})?", text)
    if bracketed is not None:
        return bracketed[1]
    host, colon, _ = text.partition(":")
    return host if colon and text.count(":") == 1 else text


def address_of(text: str) -> Address | None:
    """The address of a text, IPv4 also where it has the form of IPv6; None for another text."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if found.version == 6 and found.scope_id is not None:  # a zone may hold any characters
        return None
    mapped = found.ipv4_mapped if found.version == 6 else None
    return mapped or found
