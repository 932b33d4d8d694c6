"""The page that shows and replaces the encrypted values of a server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.problems import InvalidInput
from bonobot.core.text.masking import MASK
from mcp_servers import services
from mcp_servers.admin.server_details import build_sign_in_panel
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.models import Secret, Server
from mcp_servers.server_config import build_changed_spec, mask_endpoint_config

# Configuration field of each secret placement.
CONFIG_FIELDS = {Secret.Placement.HEADER: "headers", Secret.Placement.ENV: "env"}


@dataclass(frozen=True)
class CredentialField:
    """An encrypted value, shown by name with a field to replace it."""

    secret: Secret
    may_replace: bool

    @property
    def field(self) -> str:
        return f"secret-{self.secret.pk}"


@ServerAdmin.add_page("credentials", _("Credentials"), order=55)
def show_credentials(visit: ObjectRequest) -> HttpResponseBase:
    """Show the encrypted values, or replace those that were filled in."""
    server: Server = visit.object
    credentials = [
        CredentialField(secret, _can_replace(visit, secret)) for secret in _list_secrets(server)
    ]
    if visit.request.method == "POST":
        visit.principal.require(Action.MANAGE_SERVERS)
        posted = visit.request.POST
        new_values = {
            credential.secret: text
            for credential in credentials
            if (text := posted.get(credential.field, "").strip())
        }
        _replace_secrets(visit, new_values)
        text = _t("Replaced: %(names)s. The server is being checked again.")
        names = ", ".join(secret.name for secret in new_values)
        messages.success(visit.request, text % {"names": names})
        return redirect_to_page(visit, "change", "?connect=1" if server.enabled else "")
    auth = mask_auth_config(server)
    public = {name: auth[name] for name in sorted(auth) if name not in ("type", "configured")}
    return visit.render_tab(
        "servers/credentials.html",
        server=server,
        credentials=credentials,
        public=[(name, _format_value(value)) for name, value in public.items()],
        configured=auth["configured"],
        sign_in_panel=build_sign_in_panel(visit),
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
        replaceable=any(credential.may_replace for credential in credentials),
    )


def _list_secrets(server: Server) -> list[Secret]:
    order = list(Secret.Placement)
    rows = list(server.secrets.all())
    return sorted(rows, key=lambda row: (-order.index(Secret.Placement(row.placement)), row.name))


def _can_replace(visit: ObjectRequest, secret: Secret) -> bool:
    """Whether the user may set this value; `env` is for platform administrators only."""
    is_permitted = visit.principal.platform_admin or secret.placement != Secret.Placement.ENV
    return is_permitted and visit.principal.may(Action.MANAGE_SERVERS)


def _replace_secrets(visit: ObjectRequest, new_values: Mapping[Secret, str]) -> None:
    """Replace these secrets; raises `InvalidInput` if there are none."""
    if not new_values:
        raise InvalidInput(
            "No new value was entered.",
            field="value",
            remedy="Fill in the values to replace. Other values stay unchanged.",
        )
    server: Server = visit.object
    endpoint, auth = mask_endpoint_config(server), {"type": server.auth_type, **server.auth_config}
    for secret in server.secrets.all():
        value = new_values.get(secret, MASK)
        if secret.placement == Secret.Placement.AUTH:
            auth[secret.name] = value
        else:
            field = CONFIG_FIELDS[Secret.Placement(secret.placement)]
            endpoint[field] = {**endpoint[field], secret.name: value}
    spec = build_changed_spec(server, endpoint_config=endpoint, auth_config=auth)
    services.update_server(visit.principal, server, spec)


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
