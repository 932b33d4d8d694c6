"""A server's configuration: the form, with what is stored, secrets masked."""

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.problems import Problem
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward, refuse
from mcp_servers import registration
from mcp_servers.admin.apis import api_configuration
from mcp_servers.admin.forms import PLACES, ServerForm, initial_of
from mcp_servers.admin.operations import declared_configuration
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Server
from mcp_servers.openapi.keeping import is_declared


@ServerAdmin.add_page("configuration", _("Configuration"), order=60)
def configuration(visit: Visit) -> HttpResponseBase:
    """Show the form, or change the server."""
    server: Server = visit.object
    if is_declared(server):
        return declared_configuration(visit)
    if not server.speaks_mcp:
        return api_configuration(visit)
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = ServerForm(visit.principal, posted, initial=initial_of(server))
    if posted is not None and form.is_valid():
        try:
            registration.alter(visit.principal, server, form.spec())
        except Problem as problem:
            server.refresh_from_db()
            refuse(form, problem, PLACES)
        else:
            messages.success(visit.request, _t("Saved. The server is asked anew."))
            return onward(visit, "change", "?connect=1" if server.enabled else "")
    return visit.show(
        "servers/configuration.html",
        server=server,
        form=form,
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
    )
