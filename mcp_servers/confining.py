"""Which box a stdio server is to run in: who may say so, and what goes together."""

from dataclasses import asdict, dataclass

from django.conf import settings

from bonobot.lib.problems import Forbidden, Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from mcp_servers.models import Server

Kind, Network = Server.Confinement, Server.Network
USUAL_NETWORKS: dict[str, str] = {
    Kind.SANDBOX: Network.EGRESS,
    Kind.NONE: Network.HOST,
    Kind.NAMESPACES: Network.HOST,
    Kind.BUBBLEWRAP: Network.NONE,
}


@dataclass(frozen=True)
class Box:
    """A server's box; what is None isn't said."""

    confinement: str | None = Kind.NONE
    network: str | None = Network.HOST

    def columns(self) -> dict[str, str | None]:
        """Return the columns of the row."""
        return asdict(self)


def check_box(
    principal: Principal,
    transport: str,
    said: Box,
    *,
    old: Server | None,
    by_preset: bool,
) -> Box:
    """Return the box as it will be stored; raises a `Problem` that names the field.

    What isn't said stays as it is in `old`; where nothing was stored, it is as
    `BONOBOT_STDIO_CONFINEMENT` says, in a sandbox by default. A sandboxed server reaches the
    network by the egress rules, and a bubblewrapped one has none until it is granted. Only a
    platform administrator may change a box, and an approved preset brings its own.
    """
    if transport != Server.Transport.STDIO:
        return _none_over_http(said)
    is_stdio = old is not None and old.transport_type == Server.Transport.STDIO
    kept = Box(old.confinement, old.network) if old and is_stdio else usual_box()
    kind = _choice(said.confinement or kept.confinement, "confinement", Kind.values)
    network = said.network or _usual_network(kind, kept)
    wanted = Box(kind, _choice(network, "network", Network.values))
    if wanted == Box(Kind.NONE, Network.NONE):
        raise Invalid(
            "Only a confined server can be kept from the network.",
            code="needs_confinement",
            field="network",
            remedy="Set `confinement` to `sandbox`, `namespaces` or `bubblewrap`.",
        )
    if wanted.network == Network.EGRESS and kind != Kind.SANDBOX:
        raise Invalid(
            "Only a sandboxed server can be kept to the egress rules.",
            code="needs_sandbox",
            field="network",
            remedy="Set `confinement` to `sandbox`, or `network` to `host` or `none`.",
        )
    if wanted != kept and not (principal.platform_admin or by_preset):
        raise Forbidden(
            "Only a platform administrator may set how a stdio server is confined.",
            code="platform_admin_only",
            field="confinement",
            rule="stdio",
            remedy="Ask a platform administrator.",
        )
    return wanted


def usual_box() -> Box:
    """Return the box of a stdio server of which nothing is said."""
    kind = settings.BONOBOT_STDIO_CONFINEMENT
    return Box(kind, USUAL_NETWORKS[kind])


def _usual_network(kind: str, kept: Box) -> str | None:
    namespaces_only = kind == Kind.NAMESPACES and kept.network != Network.EGRESS
    return kept.network if kind == kept.confinement or namespaces_only else USUAL_NETWORKS[kind]


def _none_over_http(said: Box) -> Box:
    if said.confinement not in (None, Kind.NONE) or said.network not in (None, Network.HOST):
        raise Invalid(
            "Nothing runs here for a server over HTTP, so nothing can be confined.",
            code="not_for_http",
            field="confinement",
            remedy="Leave `confinement` and `network` out.",
        )
    return Box()


def _choice(value: str | None, field: str, choices: list[str]) -> str:
    if value is None or value not in choices:
        raise Invalid(
            say("There is no {field} {value!r}.", field=field, value=value),
            code=f"unknown_{field}",
            field=field,
            remedy=say("Use one of: {choices}.", choices=", ".join(choices)),
        )
    return value
