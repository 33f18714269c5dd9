"""What is used of libraries although they do not promise it: it is there, and a library of which
something is used is pinned to the minor, because the next one may change it.

A failure after an update names the file whose use of the library is to be checked.
"""

import dis
import importlib
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("web", "worker", "models", "cli", "migrations")


class Internals(NamedTuple):
    """What files use of a class or a module."""

    library: str
    """As pyproject.toml names it."""
    owner: str
    """A module, or a module and a class of it."""
    names: str
    """Its attributes and methods; those that a subclass replaces too."""
    users: str


_HTTP = "uvicorn.protocols.http."
_WEBSOCKET = "uvicorn.protocols.websockets.websockets_sansio_impl"
_POOL = "worker/celery/pool.py"

INTERNALS = (
    Internals("celery", "celery.apps.worker", "safe_say", "worker/celery/app.py"),
    Internals("celery", "celery.bootsteps", "RUN", _POOL),
    Internals("celery", "celery.worker.state", "maybe_shutdown", _POOL),
    Internals(
        "celery", "celery.worker.consumer.consumer:Consumer", "loop on_ready pool stop", _POOL
    ),
    Internals(
        "celery",
        "celery.concurrency.base:BasePool",
        "app limit on_start on_stop on_terminate signal_safe task_join_will_block uses_semaphore",
        _POOL,
    ),
    Internals("kombu", "kombu.transport.virtual.base:Transport", "on_message_ready", _POOL),
    Internals(
        "uvicorn",
        _HTTP + "httptools_impl:HttpToolsProtocol",
        "client cycle data_received eof_received flow handle_websocket_upgrade headers loop"
        " on_body on_header on_headers_complete on_message_begin on_message_complete"
        " on_response_complete on_url pause_writing pipeline resume_writing scope"
        " send_400_response transport url",
        "web/http/protocol.py",
    ),
    Internals(
        "uvicorn",
        _HTTP + "httptools_impl:RequestResponseCycle",
        "chunked_encoding disconnected keep_alive message_event response_complete"
        " response_started scope transport waiting_for_100_continue",
        "web/http/protocol.py web/http/transport.py",
    ),
    Internals("uvicorn", _HTTP + "httptools_impl", "STATUS_LINE", "web/http/protocol.py"),
    Internals(
        "uvicorn",
        _HTTP + "flow_control:FlowControl",
        "drain pause_reading read_paused resume_reading",
        "web/http/transport.py",
    ),
    Internals(
        "uvicorn",
        "uvicorn.server:Server",
        "config handle_exit lifespan server_state servers startup",
        "web/__main__.py",
    ),
    Internals(
        "uvicorn",
        f"{_WEBSOCKET}:WebSocketsSansIOProtocol",
        "close_sent close_timeout close_timer conn handle_bytes handle_connect handle_cont"
        " handle_parser_exception handle_ping handle_pong handle_text handshake_complete"
        " handshake_initiated initial_response keepalive_timeout loop logger queue read_paused"
        " receive scope send shutdown transport writable",
        "features/websocket/web.py",
    ),
    Internals(
        "uvicorn",
        "uvicorn._types",
        "ASGIReceiveEvent ASGISendEvent",
        "features/websocket/web.py",
    ),
    Internals(
        "websockets", "websockets.protocol:Protocol", "reader", "features/websocket/messages.py"
    ),
    Internals(
        "websockets", "websockets.streams:StreamReader", "buffer", "features/websocket/messages.py"
    ),
    Internals("psycopg", "psycopg:AsyncConnection", "wait", "models/db/connection.py"),
    Internals("psycopg", "psycopg.waiting", "wait", "models/db/connection.py"),
    Internals(
        "psycopg-pool",
        "psycopg_pool:AsyncConnectionPool",
        "_get_ready_connection _pool _return_connection _waiting",
        "models/db/connection.py",
    ),
    Internals(
        "redis",
        "redis.asyncio.connection:AbstractConnection",
        "_reader _writer",
        "models/redis/raw_connection.py",
    ),
    Internals(
        "redis",
        "redis.asyncio.connection:ConnectionPool",
        "make_connection",
        "models/redis/raw_connection.py",
    ),
)

_PRIVATE_USE = re.compile(r"^(?:from|import) (?!__)[\w.]*\b_[a-z]|# noqa: SLF001", re.MULTILINE)


@pytest.mark.parametrize("used", INTERNALS, ids=lambda used: f"{used.owner}-{used.names[:20]}")
def test_what_is_used_of_a_library_is_there(used: Internals) -> None:
    module, _, name = used.owner.partition(":")
    owner: Any = importlib.import_module(module)
    if name:
        owner = getattr(owner, name)
    assert {*used.names.split()} <= {*dir(owner), *_set_by_methods(owner)}, used.users


def _set_by_methods(owner: object) -> set[str]:
    """The attributes that the methods of a class and of its bases set; none of a module."""
    return {
        str(instruction.argval)
        for each in (inspect.getmro(owner) if isinstance(owner, type) else ())
        for method in vars(each).values()
        if inspect.isfunction(method)
        for instruction in dis.get_instructions(method)
        if instruction.opname == "STORE_ATTR"
    }


@pytest.mark.parametrize("library", sorted({used.library for used in INTERNALS}))
def test_a_library_of_which_internals_are_used_is_pinned_to_the_minor(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [declared] = [
        each for each in project["dependencies"] if re.match(rf"{library}(?![\w-])", each)
    ]
    match = re.fullmatch(r"[\w-]+(?:\[\w+\])?>=(\d+)\.(\d+)(?:\.\d+)?,<(\d+)\.(\d+)", declared)
    assert match is not None, declared
    major, minor, next_major, next_minor = map(int, match.groups())
    assert (next_major, next_minor) == (major, minor + 1)


def test_each_file_that_uses_private_names_of_a_library_is_listed() -> None:
    using = {
        str(file.relative_to(ROOT))
        for folder in PRODUCT
        for file in ROOT.glob(f"{folder}/**/*.py")
        if _PRIVATE_USE.search(file.read_text())
    }
    assert using <= {user for used in INTERNALS for user in used.users.split()}
