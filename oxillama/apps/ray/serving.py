"""The server as a Ray Serve application: ingresses that accept HTTP, and replicas with an engine each.

Serve's router cannot see HTTP bodies. So an ingress reads the whole request, computes the keys of its
prompt's prefix, and passes the request to a replica. A replica answers with the application of ``oxillama
serve``; the ingress forwards the answer as it is sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import ray.exceptions
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from oxillama import EngineConfig, InferenceEngine
from oxillama.apps.ray.comparing import model_facts
from oxillama.apps.ray.homes import Route, route_of, tag_of
from oxillama.apps.ray.loading import as_config, load
from oxillama.apps.ray.router import IMBALANCE, ReplicaRouter
from oxillama.apps.ray.sizing import as_assigned, sized
from oxillama.apps.server.anthropic.messages import error_event
from oxillama.apps.server.app import create_app
from oxillama.apps.server.errors import ApiError, ClientGone
from oxillama.apps.server.model_names import name_of_file
from oxillama.apps.server.models import Hosted, Models
from oxillama.apps.server.routes import ANTHROPIC, error_body
from oxillama.apps.server.running import while_connected
from oxillama.apps.server.stream import error_lines
from oxillama.base.config import checks
from oxillama.base.config.server import ServerConfig
from oxillama.errors import ConfigError

ATTEMPTS = 3
"""Replicas that a request is given to, one after another, if they die before they answer."""

REPLICA_HEADER = b"x-oxillama-replica"

OF_ONE = ("/metrics", "/slots")
CHANGES = ("POST", "/lora-adapters")
"""Paths that concern a single process, as do all paths below /slots."""

Messages = AsyncIterator[Message]


class Replica:
    """An engine, and the application of ``oxillama serve`` for it.

    Args:
        config: options of the engine.
        server: options of the application.
        facts: of the model that all replicas serve, see `model_facts`.

    Raises:
        ModelFileError: the files on this machine are others.
        OxiLlamaError: as `InferenceEngine`.
    """

    def __init__(self, config: EngineConfig, server: ServerConfig, facts: Mapping[str, Any]) -> None:
        self.engine: InferenceEngine = load(as_assigned(config), facts)
        self.app: Any = create_app(Models([Hosted(str(server.model_name), self.engine)], server), server)
        id = serve.get_replica_context().replica_id.unique_id
        self.name: bytes = str(id).encode()
        self.tag: str = tag_of(id)

    async def answer(self, route: Route, scope: Scope, body: bytes) -> Messages:
        """Yield the ASGI messages of the application's answer.

        Args:
            route: for the router.
            scope, body: the request, which is cancelled when the messages are no longer read.
        """
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if not parts:
                await asyncio.Event().wait()  # disconnects arrive as cancellation
            return parts.pop()

        async def run() -> None:
            try:
                await self.app(scope, receive, sent.put)
            finally:
                sent.put_nowait(None)

        scope["state"] = {"id_tag": self.tag}
        running = asyncio.ensure_future(run())
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (REPLICA_HEADER, self.name)]
                yield message
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def check_health(self) -> None:
        """Called by Serve regularly; a replica that raises, or does not answer in time, is replaced."""
        await asyncio.to_thread(self.engine.model.call, int)

    def __del__(self) -> None:
        engine = getattr(self, "engine", None)
        if engine is not None:
            engine.close()


class Front:
    """The ASGI application of an ingress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        if scope["type"] != "http":
            return
        ingress = serve.get_replica_context().servable_object
        sending = Sending(send)
        try:
            body = await read_body(receive, ingress.max_body_bytes)
            await while_connected(receive, ingress.pass_on(plain_scope(scope), body, sending))
        except ClientGone:
            pass
        except ApiError as error:
            await sending.fail(error, scope, receive)


class Ingress:
    """Accepts requests over HTTP, and passes each to a replica.

    Args:
        replicas: Serve's handle of the replicas.
        max_body_bytes: max size of a request's body.
    """

    def __init__(self, replicas: Any, max_body_bytes: int) -> None:
        self.replicas: Any = replicas.options(method_name="answer", stream=True)
        self.max_body_bytes = max_body_bytes

    async def pass_on(self, scope: Scope, body: bytes, sending: Sending) -> None:
        """Send a replica's answer. If a replica dies before it answers, another one takes over, with
        the same answer.

        Raises:
            ApiError: there is no replica, or it has died in the middle of an answer.
        """
        path = scope["path"]
        if path in OF_ONE or path.startswith("/slots/") or (scope["method"], path) == CHANGES:
            message = (
                f"{path}: expected a path that any replica can answer; this one is about a single server"
            )
            raise ApiError(501, message, code="of_one_server")
        route = await asyncio.to_thread(route_of, path, body)
        for attempt in range(ATTEMPTS):
            messages = self.replicas.remote(route, scope, body)
            try:
                async for message in messages:
                    await sending(message)
                return
            except ray.exceptions.RayActorError as error:
                if sending.has_begun or attempt == ATTEMPTS - 1:
                    raise ApiError(
                        503,
                        "the replica has ended; the same request gives the same answer",
                        code="replica_ended",
                    ) from error
            except BackPressureError as error:
                raise ApiError(429, f"queue: {error.message}", code="queue_full") from error
            finally:
                messages.cancel()


class Sending:
    """Wraps ASGI's ``send`` and records what was sent."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.has_begun: bool = False
        self.is_stream: bool = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            self.is_stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        await self.send(message)

    async def fail(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        """Report an error: as an answer, or as the last event of a stream.

        Any other answer that has begun is not completed, so that the client notices the error.
        """
        if not self.has_begun:
            body = error_body(scope["path"])(error)
            await JSONResponse(body, error.status, error.headers)(scope, receive, self.send)
        elif self.is_stream:
            is_anthropic = error_body(scope["path"]) is ANTHROPIC.error_body
            event = error_event(error) if is_anthropic else error_lines(error)
            await self.send({"type": "http.response.body", "body": event.encode(), "more_body": False})
        else:
            raise error


async def lifespan(receive: Receive, send: Send) -> None:
    """Answer ASGI's lifespan messages; an ingress has nothing to start or stop."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def read_body(receive: Receive, most: int) -> bytes:
    """The body of a request. Raises ApiError if it is too large, ClientGone if it is incomplete."""
    parts, n_bytes = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        n_bytes += len(parts[-1])
        if n_bytes > most:
            raise ApiError(413, f"body: expected at most {most} bytes, got {n_bytes}", code="body_too_large")
        if not message.get("more_body"):
            return b"".join(parts)


def plain_scope(scope: Scope) -> Scope:
    """The parts of an ASGI scope that can be sent to another process."""
    names = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string")
    found = {name: scope[name] for name in names if name in scope}
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {
        **found,
        "root_path": "",
        "headers": headers,
        "client": scope.get("client"),
        "server": scope.get("server"),
    }


def app(
    config: EngineConfig | str | os.PathLike[str],
    *,
    replicas: int | tuple[int, int] = 1,
    target_ongoing_requests: int = 16,
    max_queued_requests: int = -1,
    routing: str = "prefix",
    imbalance: int = IMBALANCE,
    ingress_replicas: int = 1,
    num_cpus: int | None = None,
    memory: int | None = None,
    per_machine: int = 1,
    drain_seconds: float = 60.0,
    **server: Any,
) -> Any:
    """An application for ``ray.serve.run``: the paths of ``oxillama serve``, answered by several engines.

    Args:
        config: engine options, or just the model: a path on every machine, or a hub name.
        replicas: number of engines; (a, b): at least a and at most b, depending on load.
        target_ongoing_requests: requests per replica that Serve aims at when it scales.
        max_queued_requests: max requests that wait at an ingress, beyond which the status is 429; -1:
            unlimited.
        routing: "prefix": prefer the replica that has run the prompt's prefix; "load": the one with the
            fewest requests. A request that names stored responses goes to the replica that keeps them.
        imbalance: a replica with this many more requests than another is not preferred.
        ingress_replicas: number of processes that accept HTTP.
        num_cpus: of each replica, as for `oxillama.apps.ray.predict`.
        memory: of each replica, in bytes.
        per_machine: replicas on a machine.
        drain_seconds: time for a removed replica to finish its requests.
        server: fields of `ServerConfig`: ``model_name``, ``api_keys``, ``cors_origins``, ``max_body_bytes``,
            ``ping_seconds``. Serve manages addresses and certificates.

    Raises:
        ConfigError: an option is unknown or outside its range.
        ModelFileError, GGUFError, LoadError: the model cannot be loaded; says why.
    """
    for name in server:
        if name not in SERVER_FIELDS:
            raise ConfigError(f"{name}: expected one of {', '.join(SERVER_FIELDS)}, or an option of app")
    config, asked = sized(as_config(config), num_cpus, memory, per_machine)
    options = ServerConfig(host="0.0.0.0", **{"model_name": name_of_file(config.model_path), **server})
    least, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    checks.integer("replicas", least, 1)
    checks.integer("replicas", most, least)
    checks.one_of("routing", routing, ("prefix", "load"))
    deployed = serve.deployment(Replica).options(
        name="oxillama",
        autoscaling_config=AutoscalingConfig(
            min_replicas=least, max_replicas=most, target_ongoing_requests=target_ongoing_requests
        ),
        max_ongoing_requests=2 * max(config.scheduler.max_sequences, target_ongoing_requests),
        max_queued_requests=max_queued_requests,
        graceful_shutdown_timeout_s=drain_seconds,
        graceful_shutdown_wait_loop_s=1.0,
        ray_actor_options=asked,
        **routed(routing, imbalance),
    )
    ingress = serve.deployment(serve.ingress(Front())(Ingress)).options(
        name="ingress",
        num_replicas=ingress_replicas,
        max_ongoing_requests=1 << 16,
        graceful_shutdown_timeout_s=drain_seconds,
        ray_actor_options={"num_cpus": 0},
    )
    scheduler = replace(config.scheduler, max_waiting=max(1 << 16, config.scheduler.max_waiting))
    config = replace(config, scheduler=scheduler)
    bound = deployed.bind(config, options, model_facts(config, asked))
    return ingress.bind(bound, options.max_body_bytes)


SERVER_FIELDS = ("model_name", "api_keys", "cors_origins", "max_body_bytes", "ping_seconds")
"""Fields of `ServerConfig` that are allowed, because Serve does not manage them."""


def routed(routing: str, imbalance: int) -> dict[str, Any]:
    """The deployment options that select the router."""
    kwargs = {"imbalance": checks.integer("imbalance", imbalance, 1), "by_prefix": routing == "prefix"}
    return {
        "request_router_config": RequestRouterConfig(
            request_router_class=ReplicaRouter, request_router_kwargs=kwargs
        )
    }
