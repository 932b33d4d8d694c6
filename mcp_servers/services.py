"""Create, update and delete servers."""

from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import QuerySet
from django.utils import timezone

from bonobot.accounts.deletions import keep_deleted_rows
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict
from bonobot.ledger.types import Actor
from mcp_servers.audit import record_server_change
from mcp_servers.close_connections import close_outdated_connections
from mcp_servers.health import outages
from mcp_servers.models import (
    ApiDocument,
    ChangeSubscription,
    Preset,
    ResourceSubscription,
    Secret,
    Server,
)
from mcp_servers.models.servers import save_document
from mcp_servers.oauth_client.revocation import find_server_account, revoke_grants
from mcp_servers.oauth_client.types import OAuthAccount
from mcp_servers.presets.enabled_presets import check_enabled
from mcp_servers.server_config import ServerColumns, ServerSpec, clean_server_spec
from mcp_servers.server_names import check_name, slugify
from mcp_servers.subscriptions import leases


def create_server(
    principal: Principal,
    spec: ServerSpec,
    *,
    scope_id: UUID | None = None,
    preset: Preset | None = None,
) -> Server:
    """Create a server of the organization, or of `scope_id` (an agent).

    Raises the problems of `clean_server_spec` and `check_enabled`, and `Conflict` (`name_taken`).
    """
    principal.require(Action.MANAGE_SERVERS)
    if preset is not None:
        # A preset allows setting a command without being a platform administrator.
        check_enabled(principal, preset)
    checked = clean_server_spec(principal, spec, by_preset=preset is not None)
    server = Server(
        organization_id=principal.organization_id,
        scope_id=scope_id or principal.organization_id,
        slug=slugify(checked.columns["name"]),
        preset=preset,
        **checked.columns,
    )
    if not server.enabled:
        server.status = Server.Status.DISABLED
    check_name_free(server.scope_id, server.name)
    with record_server_change(
        server, principal.actor, "server_created", _build_exception_details(server)
    ):
        _save_server(server)
        _write_secrets(server, checked, principal.actor)
        save_document(server, checked.document)
    return server


def update_server(principal: Principal, server: Server, spec: ServerSpec) -> Server:
    """Update a server; it is checked again soon."""
    principal.require(Action.MANAGE_SERVERS)
    checked = clean_server_spec(principal, spec, old=server)
    previous = {name: getattr(server, name) for name in checked.columns}
    previous_account = find_server_account(server)
    for name, value in checked.columns.items():
        setattr(server, name, value)
    if previous["endpoint_config"] != server.endpoint_config or checked.document is not None:
        server.era, server.discovery = "", None
    server.next_check_at = None
    server.status = Server.Status.DISCONNECTED if server.enabled else Server.Status.DISABLED
    check_name_free(server.scope_id, server.name, server)
    changed_names = sorted(name for name in previous if previous[name] != checked.columns[name])
    details: dict[str, Any] = {"changed": changed_names}
    with record_server_change(server, principal.actor, "server_updated", details):
        _save_server(server)
        if "env_exceptions" in changed_names:
            details |= _build_exception_details(server)
        if replaced := _write_secrets(server, checked, principal.actor):
            details["secrets"] = replaced
        _revoke_outdated_grants(server, previous_account, principal)
        if server.speaks_mcp and previous["transport_type"] == Server.Transport.OPENAPI:
            ApiDocument.objects.filter(server=server).delete()
        save_document(server, checked.document)
        close_outdated_connections()
    return server


def set_server_enabled(principal: Principal, server: Server, *, enabled: bool) -> None:
    """Enable or disable a server.

    Disabling is effective with the next call and closes children and connections.
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
            outages.close_outages(server)
            close_outdated_connections()
    server.refresh_from_db()


def delete_server(principal: Principal, server: Server) -> Deletion | None:
    """Delete a server with its definitions and secrets; the audit log keeps its name.

    Returns the deletion if the server can be restored; its OAuth tokens are revoked for good.
    """
    principal.require(Action.MANAGE_SERVERS)
    account = find_server_account(server)
    with record_server_change(server, principal.actor, "server_deleted"):
        lock_server_rows(Server.objects.filter(pk=server.pk))
        if account is not None:
            revoke_grants(server, account, principal.actor, server.grants.all(), unregister=True)
        deletion = keep_deleted_rows(principal, "mcp_server", server)
        server.delete()
        close_outdated_connections()
    return deletion


def check_restored_server(principal: Principal, server_id: str) -> None:
    """Schedule the check of a restored server now."""
    Server.objects.filter(pk=server_id).update(next_check_at=None)


def lock_server_rows(servers: QuerySet[Server]) -> None:
    """Lock servers and the rows that are deleted with them (3 queries)."""
    keys = lock_rows(servers, deleting=True)
    lock_rows(ChangeSubscription.objects.filter(server__in=keys))
    lock_rows(ResourceSubscription.objects.filter(server__in=keys), order=leases.ORDER)


def _build_exception_details(server: Server) -> dict[str, Any]:
    """Return the audit details of allowed dangerous variables: names and reasons."""
    return {"env_exceptions": server.env_exceptions} if server.env_exceptions else {}


def _revoke_outdated_grants(
    server: Server, previous: OAuthAccount | None, principal: Principal
) -> None:
    """Revoke tokens that were issued for a different sign-in than the current one."""
    if previous is None:
        return
    current = find_server_account(server)
    if current is None or current.binding != previous.binding:
        revoke_grants(server, previous, principal.actor, server.grants.all(), unregister=True)


def check_name_free(scope_id: UUID, name: str, server: Server | None = None) -> None:
    """Raise `Conflict` if the name is taken or too similar to another one in the scope.

    A `server` that is renamed keeps its slug.
    """
    other_servers = Server.objects.in_scope(scope_id).exclude(pk=server.pk if server else None)
    check_name(name, other_servers.values_list("name", flat=True))
    if other_servers.filter(slug=server.slug if server else slugify(name)).exists():
        raise _build_name_conflict(name)


def _save_server(server: Server) -> None:
    try:
        server.save()
    except IntegrityError:
        # The name was taken after the check.
        raise _build_name_conflict(server.name) from None


def _build_name_conflict(name: str) -> Conflict:
    return Conflict(
        format_message("A server with a name like {server!r} already exists.", server=name),
        code="name_taken",
        field="name",
        remedy="Choose another name. Names that differ only in case, `-`, or spaces count as the "
        "same.",
    )


def _write_secrets(server: Server, checked: ServerColumns, actor: Actor) -> list[str]:
    """Write new secrets encrypted, keep those that are None, delete those not listed.

    Returns the names of those written or deleted.
    """
    stored_secrets = {(secret.placement, secret.name): secret for secret in server.secrets.all()}
    for key, value in checked.secrets.items():
        if value is None:
            continue
        secret = stored_secrets.get(key) or Secret(
            organization_id=server.organization_id, server=server, placement=key[0], name=key[1]
        )
        secret.value = value  # type: ignore[assignment]  # the field encrypts the value
        secret.set_at, secret.set_by = timezone.now(), str(actor)[:255]
        secret.save()
    removed_keys = stored_secrets.keys() - checked.secrets.keys()
    for key in removed_keys:
        stored_secrets[key].delete()
    server.refresh_from_db()
    written_keys = {key for key, value in checked.secrets.items() if value is not None}
    return sorted(f"{placement}.{name}" for placement, name in written_keys | removed_keys)
