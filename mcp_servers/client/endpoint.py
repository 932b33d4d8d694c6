"""Endpoint dataclass; kinds of server requests."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

import httpx2

from bonobot.core.text.masking import Masker
from mcp_servers.client.folder_rules import SYSTEM_ONLY, FolderRule
from mcp_servers.client.sandbox import Sandbox
from mcp_servers.client.sandbox_modes import UNCONFINED, ServerSandbox
from mcp_servers.client.server_requests import Asked
from mcp_servers.client.server_sandbox import UNLIMITED, ProcessLimits

Transport = Literal["stdio", "http", "openapi"]
Era = Literal["modern", "handshake", ""]  # "" where no MCP is spoken
Wire = Literal["streamable", "sse"]

MIB = 1024 * 1024
# The member that Bonobot adds to the discovery of a server reached by HTTP+SSE.
WIRE = "bonobot/wire"


@dataclass(frozen=True, kw_only=True)
class ServerEndpoint:
    """One server as the connections see it; times are seconds, sizes bytes.

    `query`, `cookies` and `operations` (keys of those that were chosen) are an API's. `may_ask` is
    what the server may ask us for, where anybody can answer. `env_exceptions` names the dangerous
    variables that were allowed. `era` and `discovery` are what was found before and stored; None
    means: find out. `packages` is the folder in which packages of launchers are installed ("": they
    aren't), and `patience_s` how long an installation is waited for (None: as for a start).
    Printing an endpoint shows neither arguments, environment, URL nor headers: any of them may
    hold a secret.
    """

    server_id: UUID
    name: str
    organization_id: UUID
    transport: Transport
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_exceptions: frozenset[str] = frozenset()
    cwd: str | None = None
    folder_rule: FolderRule = SYSTEM_ONLY
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    operations: frozenset[str] = frozenset()
    allow_private: bool = False
    may_ask: frozenset[Asked] = frozenset()
    era: Era | None = None
    discovery: Mapping[str, Any] | None = None
    connect_s: float = 30
    read_s: float = 60
    start_s: float = 10
    packages: str = ""
    install_s: float = 600
    patience_s: float | None = None
    limits: ProcessLimits = UNLIMITED
    confinement: ServerSandbox = UNCONFINED
    sandbox: Sandbox | None = None
    max_line: int = MIB
    max_body: int = 4 * MIB
    max_definitions: int = 1000

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.transport}, server_id={str(self.server_id)!r})"

    @cached_property
    def fingerprint(self) -> str:
        """Tell configurations apart: another command, URL, credential or limit is another one."""
        parts = [
            *(self.transport, self.command, list(self.args), dict(self.env), self.cwd),
            *(self.url, dict(self.headers), self.allow_private),
            *(dict(self.query), dict(self.cookies), sorted(self.operations)),
            *(sorted(self.may_ask), sorted(self.env_exceptions), asdict(self.folder_rule)),
            *(self.connect_s, self.read_s, self.start_s, self.max_line, self.max_body),
            *(asdict(self.limits), asdict(self.confinement)),
            asdict(self.sandbox) if self.sandbox else None,
        ]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def wire(self) -> Wire:
        """Return how HTTP messages travelled when the server was found: HTTP+SSE is detected."""
        return "sse" if self.discovery and self.discovery.get(WIRE) == "sse" else "streamable"

    @property
    def auth(self) -> httpx2.Auth | None:
        """Return what signs each HTTP request anew, where headers alone don't (OAuth)."""
        return None

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """Return every opened value, so that what a server says can be shown without them."""
        values = (
            *(*self.env.values(), *self.headers.values()),
            *(*self.query.values(), *self.cookies.values()),
        )
        bare = (value.rpartition(" ")[2] for value in self.headers.values())
        return tuple({value for value in (*values, *bare) if value})

    @cached_property
    def masker(self) -> Masker:
        """Return what masks them, made once for all calls."""
        return Masker(self.secrets)
