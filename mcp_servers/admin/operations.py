"""A server's declared operations: listed with its configuration, written, and removed."""

from typing import Any

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t

from bonobot.lib.problems import Problem
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward, refuse
from mcp_servers import registration
from mcp_servers.admin.declaring import DeclaredForm, sent
from mcp_servers.admin.forms import PLACES, initial_of
from mcp_servers.admin.operation_forms import OperationForm, initial_of_operation
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Definition, Server
from mcp_servers.openapi.keeping import (
    add_operation,
    change_operation,
    operation_named,
    operations_of,
    remove_operation,
)
from mcp_servers.openapi.showing import preview


def declared_configuration(visit: Visit) -> HttpResponseBase:
    """Show the operations and the server's form, or change the server."""
    server: Server = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = DeclaredForm(visit.principal, posted, initial=initial_of(server))
    if posted is not None and form.is_valid():
        try:
            spec = form.declared_spec(operations_of(server))
            registration.alter(visit.principal, server, spec)
        except Problem as problem:
            server.refresh_from_db()
            refuse(form, problem, PLACES)
        else:
            messages.success(visit.request, _t("Saved. The server is asked anew."))
            return _asked(visit)
    states = {row.name: row.state for row in server.definitions.tools()}
    return visit.show(
        "servers/declared.html",
        server=server,
        form=form,
        operations=[(one, states.get(one["name"])) for one in operations_of(server)],
        approved=Definition.State.APPROVED,
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
    )


@ServerAdmin.add_page("operation", needs=Action.MANAGE_SERVERS, under="configuration")
def operation(visit: Visit) -> HttpResponseBase:
    """Show the form of one operation, or declare it; without a name it is a new one."""
    server: Server = visit.object
    name = visit.request.GET.get("name", "")
    stored = operation_named(server, name) if name else None
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = OperationForm(posted, initial=initial_of_operation(stored) if stored else None)
    if posted is not None and form.is_valid():
        try:
            said = form.said()
            if stored is None:
                add_operation(visit.principal, server, said)
            else:
                change_operation(visit.principal, server, name, said)
        except Problem as problem:
            server.refresh_from_db()
            form.refuse(problem)
        else:
            text = _t("Saved. What is new or changed waits for approval.")
            messages.success(visit.request, text)
            return _asked(visit)
    url = server.endpoint_config.get("url", "")
    return visit.show(
        "servers/operation.html",
        server=server,
        operation=form,
        name=name,
        url=url,
        sent=_sent(visit, stored, url),
    )


@ServerAdmin.add_page("remove_operation", needs=Action.MANAGE_SERVERS, under="configuration")
def remove(visit: Visit) -> HttpResponseBase:
    """Ask whether an operation is to be removed, or remove it."""
    server: Server = visit.object
    name = visit.request.GET.get("name", "")
    stored = operation_named(server, name)
    if visit.request.method == "POST":
        remove_operation(visit.principal, server, name)
        messages.success(visit.request, _t("%(name)s was removed.") % {"name": name})
        return _asked(visit)
    return visit.show("servers/remove_operation.html", server=server, one=stored)


def _sent(visit: Visit, stored: dict[str, Any] | None, url: str) -> dict[str, Any]:
    if visit.request.method == "POST" or stored is None:
        return sent(visit.request)
    return dict(preview(stored, url)["request"])


def _asked(visit: Visit) -> HttpResponseBase:
    return onward(visit, "change", "?connect=1" if visit.object.enabled else "")
