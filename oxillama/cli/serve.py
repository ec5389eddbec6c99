"""``serve``: a model over HTTP."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oxillama.cli import options
from oxillama.cli.console import read_text
from oxillama.cli.generate import load_engine
from oxillama.cli.models import MEANING, model_path
from oxillama.config import SchedulerConfig
from oxillama.config.server import ServerConfig
from oxillama.errors import ConfigError

if TYPE_CHECKING:
    from oxillama.server.hosting import Hosted


def add_commands(commands: Any) -> None:
    serve = options.add_command(
        commands,
        "serve",
        help="serve a model over HTTP",
        description="Serves a model over HTTP, for clients of OpenAI's interface and of llama-server's.",
    )
    serve.add_argument(
        "model", metavar="MODEL", nargs="?", help=f"{MEANING} (default: the model that the package ships)"
    )
    options.add_server_options(serve)
    serve.add_argument("--api-key-file", metavar="FILE", help="more keys, one on each line")
    options.add_engine_options(serve)
    options.add_sampler_options(serve)
    serve.set_defaults(command=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    from oxillama.demo import STORY

    check_installed()
    config = server_config(args)
    scheduler = SchedulerConfig(**options.given(args, SchedulerConfig))
    engine_config = replace(options.engine_config(args), scheduler=scheduler)
    path = str(STORY) if args.model is None else model_path(args.model, args)

    from oxillama.server.hosting import Hosted, name_of_file
    from oxillama.server.listening import Listening

    hosted = Hosted(config.model_name or name_of_file(path))
    server = Listening(hosted, config)
    found: list[BaseException] = []

    def load() -> None:
        try:
            hosted.engine = load_engine(replace(engine_config, model_path=path), args)
        except BaseException as error:
            found.append(error)
            server.stop()
            return
        if not args.quiet:
            print(greeting(server, hosted), file=sys.stderr, flush=True)

    with server.bound(), log_on_stderr(args.quiet):
        loading = threading.Thread(target=load, name="load model", daemon=True)
        server.run(before=loading.start)
    if found:
        raise found[0]
    return 0


def check_installed() -> None:
    """Raises ConfigError if what the server needs is not installed."""
    try:
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        wanted = "the packages of the server (pip install '.[server]')"
        raise ConfigError(f"serve: expected {wanted}, got none of {error.name}") from error


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The options of the server. Raises ConfigError."""
    found = ServerConfig(**options.given(args, ServerConfig))
    if args.api_key_file is None:
        return found
    lines = [line.strip() for line in read_text(args.api_key_file, "api_key_file").splitlines()]
    keys = tuple(line for line in lines if line)
    if not keys:
        raise ConfigError(f"api_key_file: expected a key on a line, got none in {args.api_key_file}")
    return replace(found, api_keys=(*found.api_keys, *keys))


@contextmanager
def log_on_stderr(quiet: bool) -> Iterator[None]:
    """Writes the server's log to stderr inside the block, its warnings alone if ``quiet``."""
    logger, handler = logging.getLogger("oxillama.server"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(Utc("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


class Utc(logging.Formatter):
    """Times in UTC."""

    converter = staticmethod(time.gmtime)


def greeting(server: Any, hosted: Hosted) -> str:
    """Where the server is, and a line to try it with."""
    key = ' -H "Authorization: Bearer KEY"' if server.config.api_keys else ""
    insecure = " -k" if server.config.ssl_certfile else ""
    body = '{"prompt": "Once upon a time", "max_tokens": 40}'
    return (
        f"{hosted.name} is ready at {server.url} (stop it with Ctrl-C)\n"
        f"curl{insecure} {server.url}/v1/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    )
