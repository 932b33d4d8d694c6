"""Validation of the sandbox settings of stdio servers."""

from dataclasses import dataclass

from django.conf import settings

from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput
from mcp_servers.models import Server

Kind, Network = Server.SandboxMode, Server.Network
DEFAULT_NETWORKS: dict[str, str] = {
    Kind.SANDBOX: Network.EGRESS,
    Kind.NONE: Network.HOST,
    Kind.NAMESPACES: Network.HOST,
    Kind.BUBBLEWRAP: Network.NONE,
}


@dataclass(frozen=True)
class SandboxConfig:
    """A server's sandbox settings; None means not given."""

    mode: str | None = Kind.NONE
    network: str | None = Network.HOST

    def to_columns(self) -> dict[str, str | None]:
        return {"sandbox": self.mode, "network": self.network}


def clean_sandbox(
    principal: Principal,
    transport: str,
    requested: SandboxConfig,
    *,
    old: Server | None,
    by_preset: bool,
) -> SandboxConfig:
    """Return the sandbox settings to store; raises a `Problem` that names the field.

    Settings that aren't given are those of `old`, or the default of `BONOBOT_STDIO_SANDBOX`.
    By default a sandboxed server has network access under the egress rules, and one with bubblewrap
    has none. Only platform administrators and approved presets may change the settings.
    """
    if transport != Server.Transport.STDIO:
        return _clean_http_sandbox(requested)
    is_stdio = old is not None and old.transport_type == Server.Transport.STDIO
    current = SandboxConfig(old.sandbox, old.network) if old and is_stdio else get_default_sandbox()
    kind = _clean_choice(requested.mode or current.mode, "sandbox", Kind.values)
    network = requested.network or _get_default_network(kind, current)
    sandbox = SandboxConfig(kind, _clean_choice(network, "network", Network.values))
    if sandbox == SandboxConfig(Kind.NONE, Network.NONE):
        raise InvalidInput(
            "Network access can be blocked only for a sandboxed server.",
            code="needs_sandbox",
            field="network",
            remedy="Set `sandbox` to `sandbox`, `namespaces`, or `bubblewrap`.",
        )
    if sandbox.network == Network.EGRESS and kind != Kind.SANDBOX:
        raise InvalidInput(
            "The egress rules can be applied only to a server in a sandbox.",
            code="needs_sandbox",
            field="network",
            remedy="Set `sandbox` to `sandbox`, or `network` to `host` or `none`.",
        )
    if sandbox != current and not (principal.platform_admin or by_preset):
        raise Forbidden(
            "Only a platform administrator can set the sandbox of a stdio server.",
            code="platform_admin_only",
            field="sandbox",
            rule="stdio",
            remedy="Contact a platform administrator.",
        )
    return sandbox


def check_bundle_sandbox(sandbox: SandboxConfig) -> None:
    """Raise `InvalidInput` for a mode that hides the folder of a server's bundle."""
    if sandbox.mode == Kind.BUBBLEWRAP:
        raise InvalidInput(
            "A server of a bundle can't use the sandbox mode `bubblewrap`, which hides its files.",
            code="not_for_bundles",
            field="sandbox",
            remedy="Set `sandbox` to `sandbox`.",
        )


def get_default_sandbox() -> SandboxConfig:
    """Return the default sandbox settings of a stdio server."""
    kind = settings.BONOBOT_STDIO_SANDBOX
    return SandboxConfig(kind, DEFAULT_NETWORKS[kind])


def _get_default_network(kind: str, current: SandboxConfig) -> str | None:
    namespaces_only = kind == Kind.NAMESPACES and current.network != Network.EGRESS
    return current.network if kind == current.mode or namespaces_only else DEFAULT_NETWORKS[kind]


def _clean_http_sandbox(requested: SandboxConfig) -> SandboxConfig:
    if requested.mode not in (None, Kind.NONE) or requested.network not in (
        None,
        Network.HOST,
    ):
        raise InvalidInput(
            "An HTTP server doesn't run on this host, so it can't be sandboxed.",
            code="not_for_http",
            field="sandbox",
            remedy="Omit `sandbox` and `network`.",
        )
    return SandboxConfig()


def _clean_choice(value: str | None, field: str, choices: list[str]) -> str:
    if value is None or value not in choices:
        raise InvalidInput(
            format_message("Unknown {field} {value!r}.", field=field, value=value),
            code=f"unknown_{field}",
            field=field,
            remedy=format_message("Use one of: {values}.", values=", ".join(choices)),
        )
    return value
