"""The panel of a server that people sign in to: who has, until when, and the way there."""

from django.contrib import messages
from django.utils.translation import gettext as _t

from bonobot.lib.untrusted import visible
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit
from mcp_servers.admin.overview import PANELS, Panel
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth import logins


def signing_in(visit: Visit) -> Panel | None:
    """Return the panel; None for servers that nobody signs in to."""
    server: Server = visit.object
    if not server.interactive:
        return None
    each = server.by_person
    subject = visit.principal.id if each else server.organization_id
    mine = each and visit.principal.kind != "user"
    grant = None if mine else OAuthGrant.objects.filter(server=server, subject=subject).first()
    alive = grant is not None and grant.alive()
    return "admin/servers/sign_in.html", {
        "each": each,
        "grant": grant if alive else None,
        "may_sign_in": each or visit.principal.may(Action.MANAGE_SERVERS),
    }


@ServerAdmin.add_deed("sign-out", needs=Action.VIEW)
def sign_out(visit: Visit) -> None:
    """Forget the tokens: the organization's, or one's own (which of them, the login says)."""
    logins.forget(visit.principal, visit.object)
    text = _t("Signed out of %(server)s.")
    messages.success(visit.request, text % {"server": visible(visit.object.name)})


PANELS.append(signing_in)
