"""``serve``: one or several models over HTTP."""

from __future__ import annotations

import argparse
import gc
import logging
import re
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from oxillama.apps.cli import options
from oxillama.apps.cli.console import logging_to, printable
from oxillama.apps.cli.models import add_model, load_engine, model_path
from oxillama.apps.cli.patient_streams import patient_streams
from oxillama.apps.cli.terminal import shown_text
from oxillama.base import early_signals
from oxillama.base.config import EngineConfig, SchedulerConfig
from oxillama.base.config.server import ServerConfig, names_in
from oxillama.base.distribution import install
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.apps.server.models import Hosted

DRAFTERS = (None, "off", "lookup", "self", "auto")
PACKED = ("auto", "make", "off")
"""Values that name no file."""


def add_commands(commands: Any) -> None:
    serve = options.add_command(
        commands,
        "serve",
        help="serve models over HTTP",
        description="Serves models over HTTP, for clients of OpenAI's interface, Anthropic's, Ollama's and "
        "llama-server's. The address itself is a page to talk to the model.",
        examples="""\
  oxillama serve                                     the story model that the package ships
  oxillama serve model.gguf --port 9000
  oxillama serve model.gguf --host 0.0.0.0 --api-key SECRET
  oxillama serve model.gguf -m small=other.gguf --models-memory 8G
""",
    )
    add_model(serve, nargs="?", default="the model that the package ships")
    serve.add_argument(
        *("-m", "--model"),
        action="append",
        type=named_model,
        default=[],
        dest="more_models",
        metavar="[NAME=]MODEL",
        help="another model, loaded when a client asks for it by its name (repeatable); "
        "the first of all is the default",
    )
    options.add_server_options(serve)
    options.add_engine_options(serve)
    options.add_sampler_options(serve)
    serve.set_defaults(command=run_serve)


def named_model(text: str) -> tuple[str | None, str]:
    """A name, and the text after the first "="; a name of the hub or a path may have no "="."""
    name, equals, model = text.partition("=")
    if equals and not (name.strip() and model):
        raise argparse.ArgumentTypeError(f"expected NAME=MODEL, got {text!r}")
    if equals and any("\ud800" <= char <= "\udfff" for char in name):  # no request can hold the name
        raise argparse.ArgumentTypeError(f"expected a name in UTF-8, got {name!r}")
    return (name, model) if equals else (None, text)


def run_serve(args: argparse.Namespace) -> int:
    with early_signals.handled(), patient_streams():
        return serve(args)


def serve(args: argparse.Namespace) -> int:
    """Serves until a signal. Raises ConfigError, LoadError."""
    check_installed()
    config = server_config(args)
    models = hosted_models(args, config)

    from oxillama.apps.server.listening import Listening
    from oxillama.apps.server.models import Models
    from oxillama.apps.server.urgency import short_turns

    def greet() -> None:
        gc.freeze()  # objects of now stay, so the collector need not stop all threads to look at them
        if not args.quiet:
            print(shown_text(greeting(server, models)), file=sys.stderr, flush=True)

    make = partial(hosted_model, args, config, for_others(engine_options(args)))
    server = Listening(Models(models, config, make), config, greet)
    with server.bound(), log_on_stderr(args.quiet), short_turns():
        server.run()
    if server.failure is not None:
        raise server.failure
    return 0


def hosted_models(args: argparse.Namespace, config: ServerConfig) -> list[Hosted]:
    """The models of the command line, the default one first. Missing models are downloaded."""
    from oxillama.apps.demo import STORY
    from oxillama.apps.server.model_names import name_of_file

    wanted = [] if args.model is None else [(config.model_name, args.model)]
    wanted += args.more_models
    if not wanted:
        wanted = [(config.model_name, str(STORY))]
    elif args.model is None and config.model_name is not None:
        raise ConfigError('alias: expected a MODEL without --model, whose names stand before the "="')
    own = engine_options(args)
    found: list[Hosted] = []
    for name, model in wanted:
        path = model_path(model, args, projector=config.pull_mmproj and own.mmproj is None)
        engine_config = own if not found else for_others(own)
        tags = names_in(None if found else config.model_tags)
        first, *others = names_in(name) or (name_of_file(path),)
        found.append(hosted_model(args, config, engine_config, first, path, others, tags))
    return found


def engine_options(args: argparse.Namespace) -> EngineConfig:
    """The options of the engines. Raises ConfigError."""
    scheduler = SchedulerConfig(**options.given(args, SchedulerConfig))
    found = replace(options.engine_config(args), scheduler=scheduler)
    if args.record is not None and found.tokenizer_path is not None:
        raise ConfigError("record: cannot be combined with tokenizer, whose file no receipt names")
    return found


def hosted_model(
    args: argparse.Namespace,
    config: ServerConfig,
    engine_config: EngineConfig,
    name: str,
    path: str,
    others: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Hosted:
    """A model, not loaded yet; ``others`` and ``tags`` are as for `Hosted`."""
    from oxillama.apps.server.models import Hosted

    engine_config = replace(engine_config, model_path=path)
    n_bytes = 0 if config.models_memory is None else weight_bytes(engine_config)
    return Hosted(
        name,
        load=partial(load_engine, engine_config, args),
        path=path,
        n_bytes=n_bytes,
        mmproj=engine_config.mmproj,
        chat_template=engine_config.chat_template,
        others=others,
        tags=tags,
    )


def for_others(config: EngineConfig) -> EngineConfig:
    """The options of the models after the first, without the files that belong to the first."""
    speculate = config.speculate if config.speculate in DRAFTERS else None
    packed = config.packed if config.packed in PACKED else "auto"
    return replace(
        config,
        adapters=(),
        tokenizer_path=None,
        chat_template=None,
        speculate=speculate,
        packed=packed,
        mmproj=None,
    )


def weight_bytes(config: EngineConfig) -> int:
    """Bytes of a model's weights in memory, from its header; 0 for a model that cannot be loaded."""
    from oxillama.gguf.model_file import ModelFile
    from oxillama.models.preflight import preflight

    assert config.model_path is not None
    with ModelFile.open(config.model_path) as file:
        return preflight(file, config.offload_budget, config.offload_pinned).resident_bytes


def check_installed() -> None:
    """Raises ConfigError if packages of the server are not installed."""
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        wanted = f"the packages of the server ({install('server')})"
        raise ConfigError(f"serve: expected {wanted}, got none of {error.name}") from error


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The options of the server. Raises ConfigError."""
    return ServerConfig(**options.given(args, ServerConfig))


LOGGERS = ("oxillama.apps.server", "oxillama.apps.mcp", "uvicorn", "asyncio")
"""The loggers of a server. Those after the first have warnings alone."""


def log_on_stderr(quiet: bool) -> AbstractContextManager[None]:
    """Writes the server's log to stderr inside the block, its warnings alone if ``quiet``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(message)s"))
    levels = {
        **dict.fromkeys(LOGGERS, logging.WARNING),
        LOGGERS[0]: logging.WARNING if quiet else logging.INFO,
    }
    return logging_to(handler, levels)


class LineFormatter(logging.Formatter):
    """Times in UTC; control characters as escapes, so that a text of a client is never a line of its own."""

    converter = staticmethod(time.gmtime)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def greeting(server: Any, models: Sequence[Hosted]) -> str:
    """The server's address, its models, and a command to try it."""
    key = ' -H "Authorization: Bearer KEY"' if server.config.has_keys else ""
    insecure = " -k" if server.config.ssl_certfile else ""
    body = '{"prompt": "Once upon a time", "max_tokens": 40}'
    elsewhere = address_for_others(server.url)
    away = "" if elsewhere is None else f"\nother machines find it at {elsewhere}"
    others = "".join(
        f"\n{each.name} is loaded when it is asked for" for each in models if each.engine is None
    )
    return (
        f"{models[0].name} is ready at {server.url} (stop it with Ctrl-C){away}{others}\n"
        f"curl{insecure} {address_for_curl(server)}/v1/completions{key} "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )


def address_for_others(url: str) -> str | None:
    """The address in its network of a server that listens at all addresses; None if it is not known."""
    found = re.fullmatch(r"(https?://)(?:0\.0\.0\.0|\[::\])(:\d+)", url)
    if found is None:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect(("192.0.2.1", 9))  # an address of documentation (RFC 5737): nothing is sent
            own = str(asked.getsockname()[0])
    except OSError:
        return None
    return None if own.startswith(("127.", "0.")) else f"{found[1]}{own}{found[2]}"


def address_for_curl(server: Any) -> str:
    """The server's address, in the form of curl's arguments."""
    path = server.config.unix_socket
    return str(server.url) if path is None else f"--unix-socket {path} http://localhost"
