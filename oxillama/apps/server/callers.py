"""Callers: the keys of a server, and the limits of each key's holder.

From a key follow the salt of its prompts, its turn in the batch, its slots and stored responses, and its
limits. A server without keys has one caller, who may do everything.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxillama.apps.server.errors import ApiError, fault, invalid
from oxillama.base.config import GenerationOptions
from oxillama.base.config.server import ServerConfig, is_key
from oxillama.engine.generation import Generation
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import Receive  # a plain row of `oxillama batch` needs no package of the server

log: logging.Logger = logging.getLogger(__name__)

HASHED = "sha256:"
"""Before the hexadecimal hash that stands for a key in a file."""

MINUTE = 60.0


@dataclass(frozen=True)
class Limits:
    """The limits of the holder of a key.

    Attributes:
        running, waiting: requests at a time; None: no limit.
        tokens: of prompts and texts in a minute; None: no limit.
        priority: whether a request may have a priority.
        admin: whether the key is an operator's: `/metrics`, scales of adapters, downloads, the end of a
            model.
    """

    running: int | None = None
    waiting: int | None = None
    tokens: int | None = None
    priority: bool = False
    admin: bool = False


class Caller:
    """The holder of a key, or whoever asks a server without keys.

    Attributes:
        name: in the log and in the table of keys; "" without keys.
        salt: of the prompts of this caller; "" where all callers share the prefix cache.
    """

    def __init__(self, name: str = "", limits: Limits = Limits(priority=True, admin=True), salt: str = ""):
        self.name: str = name
        self.limits: Limits = limits
        self.salt: str = salt
        self._n_running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._spent, self._spent_at = 0.0, time.monotonic()

    def check_admin(self, to: str = "") -> None:
        """Raises ApiError unless the key is an operator's; ``to`` says for what."""
        if not self.limits.admin:
            wanted = " ".join(["an admin's (--admin-key)", *([to] if to else [])])
            raise ApiError(403, f"api key: expected {wanted}, got another", code="not_admin")

    # --- running and waiting --------------------------------------------------------------------------

    def try_enter(self) -> bool:
        """Whether one more request of this caller may run at once; `leave` ends it.

        Raises ApiError if its tokens of this minute are used up.
        """
        self._check_tokens()
        if self.limits.running is None or (self._n_running < self.limits.running and not self._waiting):
            self._n_running += 1
            return True
        return False

    async def enter(self) -> None:
        """Waits until one more request of this caller may run; `leave` ends it.

        Raises ApiError if too many wait already, or the tokens are used up when its turn comes.
        """
        if self.limits.waiting is not None and len(self._waiting) >= self.limits.waiting:
            raise too_many(f"{len(self._waiting)} requests of this key wait already", "key_queue_full", 1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)
            elif not future.cancelled():
                self.leave()  # its turn came in the same moment
            raise
        try:
            self._check_tokens()
        except ApiError:
            self.leave()
            raise

    def leave(self) -> None:
        """Ends what `enter` began."""
        self._n_running -= 1
        self.admit()

    def admit(self) -> None:
        """Lets waiting requests run, as far as the limit allows."""
        most = math.inf if self.limits.running is None else self.limits.running
        while self._waiting and self._n_running < most:
            future = self._waiting.popleft()
            if not future.done():
                self._n_running += 1
                future.set_result(None)

    # --- tokens ---------------------------------------------------------------------------------------

    def _refill(self) -> None:
        now = time.monotonic()
        if self.limits.tokens is not None:
            self._spent = max(0.0, self._spent - (now - self._spent_at) * self.limits.tokens / MINUTE)
        self._spent_at = now

    def _check_tokens(self) -> None:
        """Raises ApiError while the tokens of a minute are used up."""
        most = self.limits.tokens
        self._refill()
        if most is not None and self._spent >= most:
            seconds = math.ceil((self._spent - most) * MINUTE / most) + 1
            raise too_many(f"expected at most {most} tokens a minute", "key_tokens_used_up", seconds)

    def charge(self, n_tokens: int) -> None:
        """Notes tokens that were run for this caller; the next request waits until the limit covers them."""
        self._refill()
        self._spent += n_tokens


def too_many(message: str, code: str, seconds: int) -> ApiError:
    """The answer to a caller over a limit of its key, who may try again after so many seconds."""
    return ApiError(429, f"api key: {message}", code=code, retry_seconds=seconds)


# --- the context of a request -------------------------------------------------------------------------


@dataclass
class RequestContext:
    """The state of one request of a client, from its head to the end of its answer.

    Attributes:
        client: whose turn its work takes: the key, or the address of a client without one.
        request_id: in the answer and the logs; None outside of a server.
        config, pools: of the server.
        receive: tells, once the body is read, that the client has gone; None where nobody can tell.
        n_bytes: of the body.
        n_held: bytes of the body as it came and decompressed.
        hold: counts further ones.
        is_stopped: whether the server has ended the request, because it ends itself.
        generations: that were started for it.
        n_tokens: that are run for it beside those, as for embeddings.
        ends: called when the answer has ended.
        recording: of the request and its answer; None where nothing is recorded.
        hides_receipts: whether the texts have receipts that the client has not asked for.
        id_tag: what the ids of stored responses begin with: which of several processes keeps them; "" for
            one.
    """

    caller: Caller = field(default_factory=Caller)
    client: str = ""
    request_id: str | None = None
    config: ServerConfig = field(default_factory=ServerConfig)
    pools: Any = None
    receive: Receive | None = None
    n_bytes: int = 0
    n_held: int = 0
    hold: Callable[[int], object] = lambda n_bytes: None
    is_stopped: bool = False
    generations: list[Generation] = field(default_factory=list)
    n_tokens: int = 0
    ends: list[Callable[[], object]] = field(default_factory=list)
    recording: Any = None
    hides_receipts: bool = False
    id_tag: str = ""

    def end(self) -> None:
        """Gives back what the request has, and charges its tokens."""
        usages = [generation.usage for generation in self.generations]
        self.caller.charge(self.n_tokens + sum(usage.total_tokens for usage in usages))
        self.generations.clear()
        while self.ends:
            self.ends.pop()()


CONTEXT: ContextVar[RequestContext | None] = ContextVar("oxillama server request", default=None)


def context() -> RequestContext:
    """The context of the running request; outside of a request, of a caller who may do everything."""
    return CONTEXT.get() or RequestContext()


def whose() -> dict[str, str]:
    """The tenant and the salt of the running request."""
    caller = context().caller
    return {"tenant": caller.name, "salt": salted(caller, "")}


def salted(caller: Caller, salt: str) -> str:
    """The salt of a caller's request that asks for a salt of its own."""
    return f"{caller.salt} {salt}" if caller.salt else salt


def within_limits(options: GenerationOptions, asked: Container[str]) -> GenerationOptions:
    """The options of a request, with the tenant, salt and limits of its key and of the server.

    Args:
        asked: fields that the request has; the value of another one is lowered to its limit.

    Raises ApiError for a priority that the key may not ask for, and for more tokens or seconds than the
    server allows.
    """
    caller, config = context().caller, context().config
    changes: dict[str, Any] = {}
    if options.priority and not caller.limits.priority:
        raise fault("priority", "expected 0 for this key, got another", "priority_not_allowed", 403)
    for name, most in (("max_tokens", config.max_tokens_limit), ("timeout", config.timeout_limit)):
        value = getattr(options, name)
        if most is None or (value is not None and value <= most):
            continue
        if value is None or name not in asked:
            changes[name] = most
        else:
            raise invalid(name, f"at most {most} on this server", value)
    if caller.name:
        changes["tenant"] = caller.name
    if caller.salt:
        changes["salt"] = salted(caller, options.salt)
    return replace(options, **changes) if changes else options


# --- the table of keys --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A line of the table: the name, the SHA-256 of the key, its limits."""

    name: str
    digest: bytes
    limits: Limits


class Keys:
    """The keys of a server. Only hashes are kept; all are compared, in constant time.

    Raises ConfigError if the file of keys cannot be read, or is malformed.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._entries: list[Entry] = []
        self._callers: dict[bytes, Caller] = {}
        self._anybody = Caller()
        self.load()

    def __len__(self) -> int:
        return len(self._entries)

    def load(self) -> None:
        """Reads the table again: new keys and limits apply at once, also to callers who have requests."""
        config, entries = self.config, []
        usual = Limits(config.key_running, config.key_waiting, config.key_tokens)
        for keys, admin in ((config.api_keys, False), (config.admin_keys, True)):
            limits = replace(usual, admin=admin, priority=admin)
            entries += [entry(key, limits) for key in keys]
        if config.api_key_file is not None:
            entries += read_entries(Path(config.api_key_file), usual)
        if len(entries) == 1:  # the operator's own
            entries = [replace(entries[0], limits=replace(entries[0].limits, admin=True, priority=True))]
        names = [each.name for each in entries]
        for each in entries:
            if names.count(each.name) > 1:
                raise ConfigError(f"api_key_file: expected another name for each key, got {each.name} twice")
        callers = {}
        for each in entries:
            salt = "" if config.share_prefixes else hashlib.sha256(b"salt" + each.digest).hexdigest()
            caller = self._callers.get(each.digest) or Caller(each.name)
            caller.name, caller.limits, caller.salt = each.name, each.limits, salt
            caller.admit()
            callers[each.digest] = caller
        self._entries, self._callers = entries, callers

    def reload(self) -> None:
        """`load`, for a signal: a table that cannot be read leaves the old one, with a line in the log."""
        try:
            self.load()
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error)
        else:
            log.warning("%d keys were read", len(self._entries))

    def caller(self, key: str) -> Caller | None:
        """The holder of a key; None for one that is not in the table."""
        if not self._entries:
            return self._anybody
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        same = [each for each in self._entries if hmac.compare_digest(digest, each.digest)]
        return self._callers[same[0].digest] if same else None


def entry(key: str, limits: Limits, name: str | None = None) -> Entry:
    """The entry of a key, or of its hash. An entry without a name is named after the hash."""
    if key.startswith(HASHED):
        digest = bytes.fromhex(key.removeprefix(HASHED))
    else:
        digest = hashlib.sha256(key.encode()).digest()
    return Entry(name or f"key-{digest.hex()[:8]}", digest, limits)


def read_entries(path: Path, usual: Limits) -> list[Entry]:
    """The entries of a file: on each line a key or its hash, then ``name=``, ``running=`` and so on.

    Raises ConfigError.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"api_key_file: {path} cannot be read: {reason}") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            found.append(entry_of(words, usual, f"api_key_file: line {number}"))
    if not found:
        raise ConfigError(f"api_key_file: expected a key on a line, got none in {path}")
    return found


def entry_of(words: Iterable[str], usual: Limits, where: str) -> Entry:
    """The entry of a line. Raises ConfigError, whose message does not show the key."""
    key, *rest = words
    try:
        is_good = is_key(key) and (not key.startswith(HASHED) or len(entry(key, usual).digest) == 32)
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(f"{where}: expected a key, or {HASHED} and 64 digits, got others")
    name, limits = None, usual
    for word in rest:
        field_name, _, value = word.partition("=")
        if field_name == "name" and value:
            name = value
        elif field_name in ("priority", "admin") and (value or "yes") in ("yes", "no"):
            limits = replace(limits, **{field_name: (value or "yes") == "yes"})
        elif field_name in ("running", "waiting", "tokens") and value.isascii() and value.isdigit():
            limits = replace(limits, **{field_name: int(value)})  # type: ignore[arg-type]
        else:
            known = "name=, running=, waiting=, tokens=, priority, admin"
            raise ConfigError(f"{where}: expected one of {known}, got {word}")
    if limits.running == 0 or limits.tokens == 0:
        raise ConfigError(f"{where}: expected running and tokens of at least 1, got 0")
    return entry(key, limits, name)
