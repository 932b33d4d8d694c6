"""Adding to the organization's pool: the addresses of the ways to add."""

from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.active import principal_of
from bonobot.tenancy.roles import Action
from mcp_servers.admin import apis, declaring
from mcp_servers.admin.adding import Destination, add_by_form, choose_preset, fill_preset
from mcp_servers.models import Server

ADDRESSES = {"form": "add"}  # the others are called like the way


def _url(way: str, *args: Any) -> str:
    return reverse(f"admin:mcp_servers_server_{ADDRESSES.get(way, way)}", args=args)


def _after(server: Server) -> str:
    page = reverse("admin:mcp_servers_server_change", args=[server.pk])
    return f"{page}?connect=1" if server.enabled else page


POOL = Destination(title=_("Add a server"), needs=Action.MANAGE_SERVERS, url=_url, after=_after)


def form_view(request: HttpRequest) -> HttpResponseBase:
    """Add by form."""
    return add_by_form(request, principal_of(request), POOL)


def presets_view(request: HttpRequest) -> HttpResponseBase:
    """Choose a preset."""
    return choose_preset(request, principal_of(request), POOL)


def preset_view(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Fill a preset."""
    return fill_preset(request, principal_of(request), POOL, slug)


def openapi_view(request: HttpRequest) -> HttpResponseBase:
    """Add a REST API by its document."""
    return apis.add_api(request, principal_of(request), POOL)


def operations_view(request: HttpRequest) -> HttpResponseBase:
    """Add an API by an operation that is declared by hand."""
    return declaring.add_declared(request, principal_of(request), POOL)


def operation_preview_view(request: HttpRequest) -> HttpResponseBase:
    """Show what an operation would send."""
    return declaring.preview_operation(request, principal_of(request))
