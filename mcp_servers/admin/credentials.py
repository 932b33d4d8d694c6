"""A server's credentials: what is sealed, since when and by whom; replaced here and never shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.masking import MASK
from bonobot.lib.problems import Invalid
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward
from mcp_servers import registration
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.admin.signing_in import signing_in
from mcp_servers.configuration import shown_auth, shown_endpoint
from mcp_servers.models import Secret, Server
from mcp_servers.respecifying import respecified

# Where each place of a secret stands in the configuration.
MEMBERS = {Secret.Placement.HEADER: "headers", Secret.Placement.ENV: "env"}


@dataclass(frozen=True)
class Held:
    """A sealed value as the page shows it: by its name, with the field that replaces it."""

    secret: Secret
    may_replace: bool

    @property
    def field(self) -> str:
        """The name of the field, whatever the secret's own name holds."""
        return f"secret-{self.secret.pk}"


@ServerAdmin.add_page("credentials", _("Credentials"), order=55)
def credentials(visit: Visit) -> HttpResponseBase:
    """Show what is sealed, or replace values; those that are left empty stay."""
    server: Server = visit.object
    held = [Held(secret, _may_replace(visit, secret)) for secret in _stored(server)]
    if visit.request.method == "POST":
        visit.principal.require(Action.MANAGE_SERVERS)
        posted = visit.request.POST
        said = {one.secret: text for one in held if (text := posted.get(one.field, "").strip())}
        _replace(visit, said)
        text = _t("Replaced: %(names)s. The server is asked anew.")
        names = ", ".join(secret.name for secret in said)
        messages.success(visit.request, text % {"names": names})
        return onward(visit, "change", "?connect=1" if server.enabled else "")
    auth = shown_auth(server)
    public = {name: auth[name] for name in sorted(auth) if name not in ("type", "configured")}
    return visit.show(
        "servers/credentials.html",
        server=server,
        held=held,
        public=[(name, _text(value)) for name, value in public.items()],
        configured=auth["configured"],
        signing=signing_in(visit),
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
        replaceable=any(one.may_replace for one in held),
    )


def _stored(server: Server) -> list[Secret]:
    order = list(Secret.Placement)
    rows = list(server.secrets.all())
    return sorted(rows, key=lambda row: (-order.index(Secret.Placement(row.placement)), row.name))


def _may_replace(visit: Visit, secret: Secret) -> bool:
    """Tell whether the person may set this value: a program's environment is the platform's."""
    platform = visit.principal.platform_admin or secret.placement != Secret.Placement.ENV
    return platform and visit.principal.may(Action.MANAGE_SERVERS)


def _replace(visit: Visit, said: Mapping[Secret, str]) -> None:
    """Set these values; everything else about the server stays as it is."""
    if not said:
        raise Invalid(
            "No new value was given.",
            field="value",
            remedy="Fill in the values that are to be replaced; the others stay.",
        )
    server: Server = visit.object
    endpoint, auth = shown_endpoint(server), {"type": server.auth_type, **server.auth_config}
    for secret in server.secrets.all():
        value = said.get(secret, MASK)
        if secret.placement == Secret.Placement.AUTH:
            auth[secret.name] = value
        else:
            member = MEMBERS[Secret.Placement(secret.placement)]
            endpoint[member] = {**endpoint[member], secret.name: value}
    spec = respecified(server, endpoint_config=endpoint, auth_config=auth)
    registration.alter(visit.principal, server, spec)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
