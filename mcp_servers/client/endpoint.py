"""How a server is reached: the `ServerEndpoint` dataclass."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

import httpx2

from bonobot.core.text.masking import Masker
from mcp_servers.bundles.archive import BundleFolder
from mcp_servers.client.folder_rules import SYSTEM_ONLY, FolderRule
from mcp_servers.client.resource_limits import UNLIMITED, ProcessLimits
from mcp_servers.client.sandbox import NO_SANDBOX, Sandbox, ServerSandbox
from mcp_servers.client.server_request_kinds import ServerRequestKind

Transport = Literal["stdio", "http", "openapi"]
Era = Literal["modern", "handshake", ""]  # "" for servers that do not speak MCP
Wire = Literal["streamable", "sse"]

MIB = 1024 * 1024
# Field that Bonobot adds to the discovery of a server reached by HTTP+SSE.
WIRE_FIELD = "bonobot/wire"


@dataclass(frozen=True, kw_only=True)
class ServerEndpoint:
    """How connections reach one server; times are seconds, sizes bytes.

    `query`, `cookies` and `operations` (keys of the selected ones) are for APIs. `allowed_requests`
    is what the server may request from us. `env_exceptions` names the allowed dangerous variables.
    `era` and `discovery` are stored results; None means: detect. A child that keeps no session
    state may be shared by the sessions of a principal. `packages` is the folder for
    packages of launchers ("": not installed), and `install_wait_s` is how long to wait for an
    installation (None: as for a start). `repr` shows no arguments, environment, URL or headers:
    they may be secret.
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
    bundle: BundleFolder | None = None
    folder_rule: FolderRule = SYSTEM_ONLY
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    cookies: Mapping[str, str] = field(default_factory=dict)
    operations: frozenset[str] = frozenset()
    allow_private: bool = False
    allowed_requests: frozenset[ServerRequestKind] = frozenset()
    era: Era | None = None
    discovery: Mapping[str, Any] | None = None
    keeps_session_state: bool = True
    connect_s: float = 30
    read_s: float = 60
    start_s: float = 10
    packages: str = ""
    install_s: float = 600
    install_wait_s: float | None = None
    limits: ProcessLimits = UNLIMITED
    sandbox_mode: ServerSandbox = NO_SANDBOX
    sandbox: Sandbox | None = None
    max_body: int = 4 * MIB
    max_definitions: int = 1000

    def __repr__(self) -> str:
        return f"ServerEndpoint({self.name!r}, {self.transport}, server_id={str(self.server_id)!r})"

    @cached_property
    def fingerprint(self) -> str:
        """Return a digest that changes with command, URL, credentials or limits."""
        parts = [
            *(self.transport, self.command, list(self.args), dict(self.env), self.cwd),
            *(self.url, dict(self.headers), self.allow_private),
            *(dict(self.query), dict(self.cookies), sorted(self.operations)),
            *(sorted(self.allowed_requests), sorted(self.env_exceptions), asdict(self.folder_rule)),
            *(self.connect_s, self.read_s, self.start_s, self.max_body),
            *(asdict(self.limits), asdict(self.sandbox_mode)),
            asdict(self.sandbox) if self.sandbox else None,
            asdict(self.bundle) if self.bundle else None,
        ]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def wire(self) -> Wire:
        """Return the HTTP transport that was detected at discovery."""
        return "sse" if self.discovery and self.discovery.get(WIRE_FIELD) == "sse" else "streamable"

    @property
    def auth(self) -> httpx2.Auth | None:
        """Return what authenticates each HTTP request in addition to headers (OAuth)."""
        return None

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """Return every decrypted value, to mask them in text from the server."""
        values = (
            *(*self.env.values(), *self.headers.values()),
            *(*self.query.values(), *self.cookies.values()),
        )
        bare_tokens = (value.rpartition(" ")[2] for value in self.headers.values())
        return tuple({value for value in (*values, *bare_tokens) if value})

    @cached_property
    def masker(self) -> Masker:
        """Return the masker of the secrets, created once."""
        return Masker(self.secrets)
