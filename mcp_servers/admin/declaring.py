"""Declare HTTP operations by hand: the way to add a server with its first one, and the preview."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t

from bonobot.lib.problems import Problem
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import fragment, refuse
from mcp_servers.admin.adding import Destination
from mcp_servers.admin.apis import ApiForm
from mcp_servers.admin.forms import PLACES
from mcp_servers.admin.operation_forms import OperationForm
from mcp_servers.configuration import ServerSpec
from mcp_servers.models import Server
from mcp_servers.openapi.declaring import FIELD
from mcp_servers.openapi.showing import preview


class DeclaredForm(ApiForm):
    """Everything about an API whose operations are declared by hand, beside those."""

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Ask for no document."""
        super().__init__(principal, *args, **kwargs)
        del self.fields["document_url"]
        self.fields["url"].widget.attrs["placeholder"] = "https://api.example.com/v1"
        self.fields["url"].help_text = _t("Where the API is; every operation is below it.")

    @property
    def address_fields(self) -> list[forms.BoundField]:
        """Return what says where the API is."""
        return [self[name] for name in ("url", "headers", "allow_private")]

    def declared_spec(self, declared: Sequence[Any]) -> ServerSpec:
        """Return what was said, with these operations."""
        said = self.cleaned_data
        said["transport_type"] = Server.Transport.OPENAPI
        spec = self.spec()
        config = {**spec.endpoint_config, "declared": list(declared)}
        return replace(spec, endpoint_config=config, allow_private=said["allow_private"])


def add_declared(
    request: HttpRequest, principal: Principal, destination: Destination
) -> HttpResponseBase:
    """Ask for a server and its first operation, or add them."""
    principal.require(destination.needs)
    posted = request.POST if request.method == "POST" else None
    form, operation = DeclaredForm(principal, posted), OperationForm(posted)
    if posted is not None and all([form.is_valid(), operation.is_valid()]):
        try:
            server = destination.add(principal, form.declared_spec([operation.said()]))
        except Problem as problem:
            refuse_either(form, operation, problem)
        else:
            messages.success(request, _t("%(server)s was added.") % {"server": server})
            return HttpResponseRedirect(destination.after(server))
    return destination.screen(
        request,
        "operations",
        "servers/declare.html",
        form=form,
        operation=operation,
        sent=sent(request),
    )


def refuse_either(form: DeclaredForm, operation: OperationForm, problem: Problem) -> None:
    """Show a problem where it belongs: at the operation, or at the server."""
    if problem.field.startswith((FIELD, "parameters[")):
        operation.refuse(problem)
    else:
        refuse(form, problem, PLACES)


def preview_operation(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Return what an operation would send as it stands in the form; nothing is sent or written."""
    principal.require(Action.MANAGE_SERVERS)
    return fragment(request, "servers/operation_sent.html", sent=sent(request))


def sent(request: HttpRequest) -> dict[str, Any]:
    """Return the request of an example as the form would send it, or what is still missing."""
    url, form = request.POST.get("url", "").strip(), OperationForm(request.POST)
    if not (url and request.POST.get("op-path", "").strip()) or not form.is_valid():
        return {}
    try:
        said = form.said()
        # Its name and description don't matter to what is sent.
        found = preview(said | {"name": "x", "description": "x"}, url)
    except Problem as problem:
        return {"problem": problem}
    return dict(found["request"])
