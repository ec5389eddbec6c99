"""A server of a model in a thread of this process, and plain clients for it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxillama import InferenceEngine
from oxillama.apps.server.callers import CONTEXT, RequestContext
from oxillama.apps.server.listening import Listening
from oxillama.apps.server.models import Hosted, Models
from oxillama.apps.server.workers import Pools
from oxillama.base.config.server import ServerConfig
from tests.support.waiting import until


@dataclass
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def choice(self) -> dict[str, Any]:
        """The first text of an answer in OpenAI's form."""
        found: dict[str, Any] = self.json["choices"][0]
        return found

    def refusal(self, *names: str) -> tuple[Any, ...]:
        """The status and the named entries of an error."""
        return self.status, *(self.error[name] for name in names)

    @property
    def lines(self) -> list[Any]:
        """The objects of an answer with one in each line."""
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def events(self) -> list[Any]:
        """The data of the events of a stream, without comments."""
        blocks = [block for block in self.text.split("\n\n") if block and not block.startswith(":")]
        data = [block.removeprefix("data: ") for block in blocks]
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    @property
    def named_events(self) -> list[Any]:
        """The data of the events of a stream, each of which has the name that its data has as its type."""
        found = []
        for block in self.text.split("\n\n"):
            if block and not block.startswith(":"):
                name, data = block.split("\n")
                found.append(json.loads(data.removeprefix("data: ")))
                assert name == f"event: {found[-1]['type']}"
        return found


@dataclass
class Client:
    """Sends requests to a server, each over a connection of its own."""

    server: Listening
    hosted: Hosted
    models: Models

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def begin(
        self, path: str, body: Any = None, method: str | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPConnection:
        """A connection on which a request was sent."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        usual = {} if data is None else {"Content-Type": "application/json"}
        verb = method or ("GET" if body is None else "POST")
        connection = self.connect()
        connection.request(verb, path, data, {**usual, **(headers or {})})
        return connection

    def open(
        self, path: str, body: Any = None, **how: Any
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A connection on which a request was sent, and the beginning of its answer."""
        connection = self.begin(path, body, **how)
        return connection, connection.getresponse()

    def ask(self, path: str, body: Any = None, *, status: int | None = None, **how: Any) -> Answer:
        """The whole answer to a request, which must have ``status`` if that is given."""
        found = answer_of(self.begin(path, body, **how))
        assert status in (None, found.status), f"{found.status}: {found.text}"
        return found

    def failed_stream(self, path: str, body: dict[str, Any], begun: bytes) -> str:
        """What comes of a stream behind a line that begins with ``begun``, when the text fails then."""
        connection, response = self.open(path, {**body, "stream": True})
        while not response.readline().startswith(begun):
            pass
        model = self.hosted.ready().model
        for request in list(model.scheduler.running):
            request.cause = MemoryError("secret")
            model.thread.cancel(request)
        rest = response.read().decode().lstrip("\n")  # the line may end its event
        connection.close()
        assert "secret" not in rest
        return rest


def answer_of(connection: http.client.HTTPConnection) -> Answer:
    """The whole answer to the request that was sent on a connection, which is closed then."""
    try:
        response = connection.getresponse()
        text = response.read().decode()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, text)
    finally:
        connection.close()


def bearer(key: str) -> dict[str, str]:
    """The header of a key."""
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def working(n_processes: int) -> Iterator[Pools]:
    """The pools of a server with ``n_processes``, in the context of a request."""
    with closing(Pools(n_processes)) as pools, in_context(pools=pools):
        yield pools


@contextmanager
def in_context(**fields: Any) -> Iterator[None]:
    """Runs what is inside as a request with these fields of its context."""
    token = CONTEXT.set(RequestContext(**fields))
    try:
        yield
    finally:
        CONTEXT.reset(token)


@contextmanager
def serving(model: InferenceEngine | Path, name: str = "story", **options: Any) -> Iterator[Client]:
    """Serves an engine, or a model file with one thread; the engine is closed at the end."""
    engine = InferenceEngine.from_gguf(model, num_threads=1) if isinstance(model, Path) else model
    with serving_models(Hosted(name, engine), **options) as client:
        yield client


@contextmanager
def serving_models(
    *hosted: Hosted, make: Callable[[str, str], Hosted] | None = None, **options: Any
) -> Iterator[Client]:
    """Serves models; the first is the default, and ``make`` makes those that clients pull."""
    config = ServerConfig(port=0, **options)
    models = Models(hosted, config, make)
    server = Listening(models, config)
    with server.bound():
        thread = threading.Thread(target=server.run, name="serve")
        thread.start()
        try:
            until(lambda: server.is_listening)
            yield Client(server, hosted[0], models)
        finally:
            server.stop()
            thread.join(60)
            assert not thread.is_alive()
