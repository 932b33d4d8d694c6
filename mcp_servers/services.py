"""Add, alter, switch, remove servers and launchers; set prices."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import QuerySet
from django.utils import timezone

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.types import Actor
from mcp_servers.audit import record_server_change
from mcp_servers.close_connections import close_stopped
from mcp_servers.health import services as health
from mcp_servers.launchers import LauncherNotAllowed, check_launcher
from mcp_servers.models import ApiDocument, Followed, Launcher, Preset, Secret, Server, Watch
from mcp_servers.models.servers import keep_document
from mcp_servers.oauth_client.revocation import find_server_account, revoke_grants
from mcp_servers.oauth_client.types import OAuthAccount
from mcp_servers.presets.availability import check_enabled
from mcp_servers.server_config import ServerColumns, ServerSpec, check
from mcp_servers.subscriptions import leases
from mcp_servers.tool_names import check_name, slugify


def add(
    principal: Principal,
    spec: ServerSpec,
    *,
    scope_id: UUID | None = None,
    preset: Preset | None = None,
) -> Server:
    """Register a server in the pool, or in `scope_id` (an agent's own); nothing half written.

    Raises the problems of `configuration.check`, `Conflict` (code `name_taken`), and those of
    `availability.check_enabled`.
    """
    principal.require(Action.MANAGE_SERVERS)
    if preset is not None:
        # A preset is what lets somebody set a command who otherwise may not.
        check_enabled(principal, preset)
    checked = check(principal, spec, by_preset=preset is not None)
    server = Server(
        organization_id=principal.organization_id,
        scope_id=scope_id or principal.organization_id,
        slug=slugify(checked.columns["name"]),
        preset=preset,
        **checked.columns,
    )
    _check_name_free(server)
    with record_server_change(server, principal.actor, "server_added", _exceptions(server)):
        _save(server)
        _seal(server, checked, principal.actor)
        keep_document(server, checked.document)
    return server


def update_server(principal: Principal, server: Server, spec: ServerSpec) -> Server:
    """Change a server; a new address or credential is asked anew at the next contact."""
    principal.require(Action.MANAGE_SERVERS)
    checked = check(principal, spec, old=server)
    was = {name: getattr(server, name) for name in checked.columns}
    before = find_server_account(server)
    for name, value in checked.columns.items():
        setattr(server, name, value)
    if was["endpoint_config"] != server.endpoint_config or checked.document is not None:
        server.era, server.discovery = "", None
    server.next_check_at = None
    server.status = Server.Status.DISCONNECTED if server.enabled else Server.Status.DISABLED
    _check_name_free(server)
    changed = sorted(name for name in was if was[name] != checked.columns[name])
    details: dict[str, Any] = {"changed": changed}
    with record_server_change(server, principal.actor, "server_changed", details):
        _save(server)
        if "env_exceptions" in changed:
            details |= _exceptions(server)
        if replaced := _seal(server, checked, principal.actor):
            details["secrets"] = replaced
        _revoke_outdated_grants(server, before, principal)
        if server.speaks_mcp and was["transport_type"] == Server.Transport.OPENAPI:
            ApiDocument.objects.filter(server=server).delete()
        keep_document(server, checked.document)
    return server


def set_server_enabled(principal: Principal, server: Server, *, enabled: bool) -> None:
    """Switch a server on or off for everybody.

    Off holds on the very next call, and what is open at it is closed: children, connections.
    """
    principal.require(Action.MANAGE_SERVERS)
    action = "server_enabled" if enabled else "server_disabled"
    with record_server_change(server, principal.actor, action):
        Server.objects.filter(pk=server.pk).update(
            enabled=enabled,
            status=Server.Status.DISCONNECTED if enabled else Server.Status.DISABLED,
            next_check_at=None,
        )
        if not enabled:
            health.close_outage(server)
            close_stopped()
    server.refresh_from_db()


def remove(principal: Principal, server: Server) -> None:
    """Delete a server with its definitions and secrets; the audit keeps its name."""
    principal.require(Action.MANAGE_SERVERS)
    account = find_server_account(server)
    with record_server_change(server, principal.actor, "server_removed"):
        lock_whole(Server.objects.filter(pk=server.pk))
        if account is not None:
            revoke_grants(server, account, principal.actor, server.grants.all(), unregister=True)
        server.delete()
        close_stopped()


def lock_whole(servers: QuerySet[Server]) -> None:
    """Have everybody wait who writes what is deleted with servers (3 queries)."""
    keys = lock(servers, deleting=True)
    lock(Watch.objects.filter(server__in=keys))
    lock(Followed.objects.filter(server__in=keys), order=leases.ORDER)


def _exceptions(server: Server) -> dict[str, Any]:
    """Return what the audit keeps of dangerous variables that were allowed: names and reasons."""
    return {"env_exceptions": server.env_exceptions} if server.env_exceptions else {}


def _revoke_outdated_grants(
    server: Server, before: OAuthAccount | None, principal: Principal
) -> None:
    """Withdraw the tokens that were given for another sign-in than the server's is now."""
    if before is None:
        return
    now = find_server_account(server)
    if now is None or now.binding != before.binding:
        revoke_grants(server, before, principal.actor, server.grants.all(), unregister=True)


def _check_name_free(server: Server) -> None:
    """Raise `Conflict` when the name is taken in the scope, or can be mistaken for one there."""
    beside = Server.objects.in_scope(server.scope_id).exclude(pk=server.pk)
    check_name(server.name, beside.values_list("name", flat=True))
    if beside.filter(slug=server.slug).exists():
        raise _build_name_conflict(server)


def _save(server: Server) -> None:
    try:
        server.save()
    except IntegrityError:
        # Someone took the name between the look and the write.
        raise _build_name_conflict(server) from None


def _build_name_conflict(server: Server) -> Conflict:
    return Conflict(
        format_message("There is a server named like {server!r} already.", server=server.name),
        code="name_taken",
        field="name",
        remedy="Choose another name; upper and lower case, `-` and spaces count as the same.",
    )


def _seal(server: Server, checked: ServerColumns, actor: Actor) -> list[str]:
    """Write the secrets: new values sealed, None keeps, what isn't named goes.

    Returns the names of those that were written or went.
    """
    stored = {(secret.placement, secret.name): secret for secret in server.secrets.all()}
    for key, value in checked.secrets.items():
        if value is None:
            continue
        secret = stored.get(key) or Secret(
            organization_id=server.organization_id, server=server, placement=key[0], name=key[1]
        )
        secret.value = value  # type: ignore[assignment]  # the field seals what it is given
        secret.set_at, secret.set_by = timezone.now(), str(actor)[:255]
        secret.save()
    gone = stored.keys() - checked.secrets.keys()
    for key in gone:
        stored[key].delete()
    server.refresh_from_db()
    written = {key for key, value in checked.secrets.items() if value is not None}
    return sorted(f"{place}.{name}" for place, name in written | gone)


NAME_ONE = "Name a program on the path, or an absolute path to one; never a shell."


def add_launcher(principal: Principal, launcher: Launcher) -> None:
    """Let stdio servers be started with this program; raises `Invalid` for one that never may."""
    try:
        check_launcher(launcher.command, allowed={launcher.command})
    except LauncherNotAllowed as refusal:
        raise InvalidInput(str(refusal), field="command", remedy=NAME_ONE) from None
    _write(principal, launcher, "launcher_added", launcher.save)


def remove_launcher(principal: Principal, launcher: Launcher) -> None:
    """Take a program off the list; servers that use it can't be started any more."""
    _write(principal, launcher, "launcher_removed", launcher.delete)


def _write(
    principal: Principal, launcher: Launcher, action: str, write: Callable[[], object]
) -> None:
    principal.require(Action.MANAGE_LAUNCHERS)
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="launcher",
        resource_id=str(launcher.pk),
        resource_name=make_visible(launcher.command),
    ):
        write()
