"""Pages with the configuration of a server, and with its declared operations."""

from typing import Any

from django.contrib import messages
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import ObjectRequest, add_problem_to_form, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.problems import Problem
from mcp_servers import services
from mcp_servers.admin.declared_operations import (
    DeclaredApiForm,
    OperationForm,
    build_example_request,
    build_operation_initial,
)
from mcp_servers.admin.openapi import show_api_configuration
from mcp_servers.admin.server_forms import PROBLEM_FIELDS, ServerForm, build_initial
from mcp_servers.admin.servers import ServerAdmin, redirect_to_server
from mcp_servers.models import Definition, Server
from mcp_servers.openapi.services import (
    build_operation_preview,
    create_operation,
    delete_operation,
    get_declared_operation,
    is_declared,
    list_declared_operations,
    update_operation,
)


def show_declared_configuration(visit: ObjectRequest) -> HttpResponseBase:
    """Show the declared operations and the form, or update the server."""
    server: Server = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = DeclaredApiForm(visit.principal, posted, initial=build_initial(server))
    if posted is not None and form.is_valid():
        try:
            spec = form.build_declared_spec(list_declared_operations(server))
            services.update_server(visit.principal, server, spec)
        except Problem as problem:
            server.refresh_from_db()
            add_problem_to_form(form, problem, PROBLEM_FIELDS)
        else:
            messages.success(visit.request, _t("Saved. The server is being checked again."))
            return redirect_to_server(visit)
    states = {row.name: row.state for row in server.definitions.tools()}
    return visit.render_tab(
        "openapi/declared_operations.html",
        server=server,
        form=form,
        operations=[
            (operation, states.get(operation["name"]))
            for operation in list_declared_operations(server)
        ],
        approved=Definition.State.APPROVED,
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
    )


@ServerAdmin.add_page(
    "operation", required_actions=Action.MANAGE_SERVERS, parent_tab="configuration"
)
def show_operation(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form of a declared operation, or create or update it."""
    server: Server = visit.object
    name = visit.request.GET.get("name", "")
    stored_operation = get_declared_operation(server, name) if name else None
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = OperationForm(
        posted, initial=build_operation_initial(stored_operation) if stored_operation else None
    )
    if posted is not None and form.is_valid():
        try:
            operation = form.build_operation()
            if stored_operation is None:
                create_operation(visit.principal, server, operation)
            else:
                update_operation(visit.principal, server, name, operation)
        except Problem as problem:
            server.refresh_from_db()
            form.add_problem(problem)
        else:
            text = _t("Saved. New and changed definitions must be reviewed.")
            messages.success(visit.request, text)
            return redirect_to_server(visit)
    url = server.endpoint_config.get("url", "")
    return visit.render_tab(
        "openapi/declared_operation.html",
        server=server,
        operation=form,
        name=name,
        url=url,
        example=_build_example_request(visit, stored_operation, url),
    )


@ServerAdmin.add_page(
    "remove_operation", required_actions=Action.MANAGE_SERVERS, parent_tab="configuration"
)
def show_operation_removal(visit: ObjectRequest) -> HttpResponseBase:
    """Confirm the deletion of an operation, or delete it."""
    server: Server = visit.object
    name = visit.request.GET.get("name", "")
    stored_operation = get_declared_operation(server, name)
    if visit.request.method == "POST":
        delete_operation(visit.principal, server, name)
        messages.success(visit.request, _t("%(name)s was deleted.") % {"name": name})
        return redirect_to_server(visit)
    return visit.render_tab(
        "openapi/remove_operation.html", server=server, operation=stored_operation
    )


def _build_example_request(
    visit: ObjectRequest, stored_operation: dict[str, Any] | None, url: str
) -> dict[str, Any]:
    if visit.request.method == "POST" or stored_operation is None:
        return build_example_request(visit.request)
    return dict(build_operation_preview(stored_operation, url)["request"])


@ServerAdmin.add_page("configuration", _("Configuration"), order=60)
def show_configuration(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form, or update the server."""
    server: Server = visit.object
    if is_declared(server):
        return show_declared_configuration(visit)
    if not server.speaks_mcp:
        return show_api_configuration(visit)
    posted = visit.request.POST if visit.request.method == "POST" else None
    if posted is not None:
        visit.principal.require(Action.MANAGE_SERVERS)
    form = ServerForm(visit.principal, posted, initial=build_initial(server))
    if posted is not None and form.is_valid():
        try:
            services.update_server(visit.principal, server, form.build_spec())
        except Problem as problem:
            server.refresh_from_db()
            add_problem_to_form(form, problem, PROBLEM_FIELDS)
        else:
            messages.success(visit.request, _t("Saved. The server is being checked again."))
            return redirect_to_page(visit, "change", "?connect=1" if server.enabled else "")
    return visit.render_tab(
        "servers/configuration.html",
        server=server,
        form=form,
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
    )
