"""Requests to the hub.

Each step of a request ends after `Hub.silence` seconds in which nothing arrives, and a response before its
body ends after `HEAD_SECONDS` in all. The token is sent to the address of the hub alone, never to an address
that a redirect or a listing names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from oxillama.base.version import __version__
from oxillama.errors import ConfigError, OxiLlamaError

SILENT_SECONDS = 10.0
"""Seconds in which nothing arrives, after which a request ends."""

HEAD_SECONDS = 30.0
"""Seconds for the headers of a response, with all redirects before it."""

NOTICE_SECONDS = 1.0
"""A step that takes longer than this is reported."""

MOST_REDIRECTS = 8

BUSY = (408, 429)
"""Statuses below 500 that say nothing about the request."""

UNREACHED = ("ConnectError", "ConnectTimeout", "ProxyError")
"""Names of errors of the client for HTTP, whose package differs by version: there is no connection."""

R = TypeVar("R")


class Refused(Exception):
    """The hub has answered that it does not give what was asked for. The text says why."""


class NoAnswer(Exception):
    """The hub cannot be reached, does not answer in time, or what answers is no hub. The text says why."""


@dataclass(frozen=True)
class Hub:
    """A hub and who asks it.

    Attributes:
        package: `huggingface_hub`.
        token: of a user; None for the one that is logged in, False for no token.
        silence: seconds in which nothing arrives, after which a request ends.
    """

    package: Any
    token: str | bool | None = None
    silence: float = SILENT_SECONDS

    @property
    def address(self) -> str:
        """The address of the hub, without a slash at its end."""
        return str(self.package.constants.ENDPOINT).rstrip("/")

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers of a request to the hub's own address.

        Raises ConfigError if a logged-in user is wanted and nobody is logged in, or for an invalid token.
        """
        found = {"accept-encoding": "identity", "user-agent": f"oxillama/{__version__}"}
        token = self.token
        if token is True or (token is None and not self.package.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN):
            try:
                token = self.package.get_token()
            except Exception as error:  # the package may ask a service for a token
                raise NoAnswer(f"token: {reason_of(error)}") from error
        if self.token is True and token is None:
            raise ConfigError("token: expected a user who is logged in (hf auth login), got none")
        if not token:
            return found
        text = str(token).strip()
        if not (text.isascii() and text.isprintable() and text):
            raise ConfigError("token: expected printable characters of ASCII, got others")
        return {**found, "authorization": f"Bearer {text}"}

    @contextmanager
    def answer(
        self,
        method: str,
        url: str,
        extra: Mapping[str, str] | None = None,
        is_enough: Callable[[Mapping[str, str]], bool] = lambda headers: False,
    ) -> Iterator[Any]:
        """The response to a request, whose body is not read yet; redirects are followed.

        Args:
            extra: further headers.
            is_enough: says by its headers whether a redirect is the response, and not followed.

        Raises:
            Refused: the hub says why it does not give it.
            NoAnswer: there is no response in time, or no usable one; an error of the network inside the
                block, too.
        """
        if self.package.constants.HF_HUB_OFFLINE:
            raise NoAnswer("HF_HUB_OFFLINE is set")
        left = threading.Event()
        response = within(
            HEAD_SECONDS, lambda: self._sent(method, url, extra or {}, is_enough, left), left=left
        )
        try:
            self._check_status(response)
            yield response
        except (Refused, NoAnswer, OxiLlamaError, OSError):
            raise
        except Exception as error:  # errors of the client for HTTP, whose package differs by version
            raise NoAnswer(f"{self.address} did not give it: {reason_of(error)}") from error
        finally:
            response.close()

    def _sent(
        self,
        method: str,
        url: str,
        extra: Mapping[str, str],
        is_enough: Callable[[Mapping[str, str]], bool],
        left: threading.Event,
    ) -> Any:
        """The last response of a chain of redirects, open. It is closed if nobody waits for it any more."""
        client = self.package.utils.get_session()
        own = origin_of(self.address)
        for _ in range(MOST_REDIRECTS + 1):
            headers = {**self.headers, **extra}
            if origin_of(url) != own:
                headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            try:
                asked = client.build_request(method, url, headers=headers, timeout=self.silence)
                response = client.send(asked, stream=True, follow_redirects=False)
            except Exception as error:  # the network fails, or the address is invalid
                if type(error).__name__ in UNREACHED:
                    host = urlsplit(self.address).netloc
                    raise NoAnswer(f"{host} cannot be reached ({reason_of(error)})") from error
                raise NoAnswer(f"{self.address} did not give it: {reason_of(error)}") from error
            if left.is_set():
                response.close()
                raise NoAnswer(f"{self.address}: nobody waits for it any more")
            location = response.headers.get("location")
            if not 300 <= response.status_code < 400 or location is None or is_enough(response.headers):
                return response
            response.close()
            url = checked_target(url, location)
        raise NoAnswer(f"{self.address}: expected at most {MOST_REDIRECTS} redirects, got more")

    def _check_status(self, response: Any) -> None:
        """Raises Refused or NoAnswer for a status that is an error."""
        status, code = response.status_code, response.headers.get("x-error-code", "")
        if status < 400:
            return
        if status >= 500 or status in BUSY:
            raise NoAnswer(f"{self.address} did not give it: HTTP status {status}")
        if code == "GatedRepo":
            reason = "gives it to users who have accepted its terms; log in with: hf auth login"
            raise Refused(f"{self.address} {reason}")
        if code == "RevisionNotFound":
            raise Refused(f"the repository at {self.address} has no such revision")
        if code == "RepoNotFound" or (status in (401, 404) and code != "EntryNotFound"):
            raise Refused(
                f"no such repository at {self.address}, or a private one (log in with: hf auth login)"
            )
        raise Refused(f"{self.address} did not give it: HTTP status {status} {shown(code)}".rstrip())

    def text(self, response: Any, most: int, until: float) -> bytes:
        """The body of a response. Raises NoAnswer for more than ``most`` bytes, or after ``until``."""
        parts, n_bytes = [], 0
        for part in response.iter_bytes():
            parts.append(part)
            n_bytes += len(part)
            if n_bytes > most:
                raise NoAnswer(f"{self.address}: expected an answer of at most {most} bytes, got more")
            if time.monotonic() > until:
                raise NoAnswer(f"{self.address}: expected an answer in time, got a part of it")
        return b"".join(parts)


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address. Raises NoAnswer for a text that is no address."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return parts.scheme.lower(), (parts.hostname or "").lower(), port
    except ValueError as error:
        raise NoAnswer(f"address: expected http or https, got {shown(url)}") from error


def checked_target(url: str, location: str) -> str:
    """The address to which a response redirects. Raises NoAnswer for one that must not be followed."""
    try:
        target = urljoin(url, location)
    except ValueError:
        target = location
    scheme, host, _ = origin_of(target)
    allowed = ("https",) if url.startswith("https:") else ("http", "https")
    if scheme not in allowed or not host:
        raise NoAnswer(f"redirect: expected an address of {' or '.join(allowed)}, got {shown(location)}")
    return target


def within(
    seconds: float,
    work: Callable[[], R],
    late: Callable[[], object] = lambda: None,
    left: threading.Event | None = None,
) -> R:
    """The result of ``work``, which runs in a thread. Raises its errors; NoAnswer after ``seconds``.

    A thread bounds what has no deadline of its own: the look-up of a host, and headers that arrive byte by
    byte.

    Args:
        late: called once, if the work takes longer than `NOTICE_SECONDS`.
        left: is set when nobody waits for the work any more.
    """
    found: list[R] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="ask the hub", daemon=True)
    thread.start()
    try:
        thread.join(min(NOTICE_SECONDS, seconds))
        if thread.is_alive():
            late()
            thread.join(max(0.0, seconds - NOTICE_SECONDS))
        if not found and not failed:
            raise NoAnswer(f"no answer within {seconds:g} s")
    except BaseException:
        if left is not None:
            left.set()
        raise
    if failed:
        raise failed[0]
    return found[0]


def reason_of(error: BaseException) -> str:
    """The text of an error, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def shown(value: object) -> str:
    """A value of a hub in a message: its first 200 characters, escaped."""
    return ascii(value)[:200]
