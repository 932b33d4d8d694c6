"""Add a server by its URL: check it, show what was found, then save it."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from bonobot.accounts.admin_base import add_problem_to_form, name_address_checkbox
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Checkbox, SecretInput, TextInput
from bonobot.core.crypto.key_ring import seal, unseal
from bonobot.core.problems import Problem
from mcp_servers.admin.add_servers import ServerDestination, redirect_after_add
from mcp_servers.admin.definition_rows import HINTS
from mcp_servers.admin.servers import POOL_DESTINATION, ServerAdmin
from mcp_servers.client.list_definitions import RawDefinition
from mcp_servers.find_server_at_url import UrlCheck, find_server_at_url
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec

TOKEN_KEY = "url_check_token"  # noqa: S105 - the session key of an encrypted token
PRIVATE_ADDRESS = "private_address"
ADD, ADD_WITH_OAUTH = "add", "oauth"
MAX_SHOWN = 100


class AddByUrlForm(forms.Form):
    """A URL; the other fields are shown once it was checked."""

    url = forms.CharField(
        label=_("URL"),
        max_length=2_000,
        widget=TextInput(
            attrs={
                "placeholder": "https://mcp.example.com/mcp",
                "inputmode": "url",
                "autocomplete": "off",
                "autofocus": True,
            }
        ),
        help_text=_("Transport and sign-in are detected. Nothing is saved yet."),
    )
    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=255,
        widget=TextInput(attrs={"autocomplete": "off"}),
        help_text=_("Short and unique. Used in tool names."),
    )
    token = forms.CharField(label=_("Token"), required=False, widget=SecretInput())
    allow_private = forms.BooleanField(
        label=_("Allow private or loopback address"), required=False, widget=Checkbox
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Disable private addresses for all but platform administrators."""
        super().__init__(*args, **kwargs)
        may_allow = principal.may(Action.ALLOW_PRIVATE_ADDRESS)
        self.fields["allow_private"].disabled = not may_allow


@never_cache
def add_by_url(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Show the form, check the URL (POST), or create the server."""
    principal.require(destination.required_action)
    form = AddByUrlForm(principal, request.POST if request.method == "POST" else None)
    check = problem = None
    if form.is_bound and form.is_valid():
        values = dict(form.cleaned_data)  # without those with errors later
        action, token = request.POST.get("do", ""), _keep_token(request, values)
        try:
            if action in (ADD, ADD_WITH_OAUTH):
                spec = _build_spec(values, token, has_oauth=action == ADD_WITH_OAUTH)
                server = destination.create_server(principal, spec)
                request.session.pop(TOKEN_KEY, None)
                return redirect_after_add(request, destination, server)
        except Problem as error:
            add_problem_to_form(form, error)
        try:
            check = find_server_at_url(
                principal, values["url"], token=token, allow_private=values["allow_private"]
            )
            _fill_form(form, check)
        except Problem as error:
            problem = error
            if principal.may(Action.ALLOW_PRIVATE_ADDRESS):
                name_address_checkbox(problem, str(form.fields["allow_private"].label))
    is_private = problem is not None and problem.code == PRIVATE_ADDRESS
    return destination.render_page(
        request,
        "url",
        "servers/add_by_url.html",
        form=form,
        check=check,
        problem=problem,
        tools=[_describe_tool(tool) for tool in check.tools[:MAX_SHOWN]] if check else [],
        has_token=TOKEN_KEY in request.session,
        is_private=is_private or bool(form.is_bound and form.data.get("allow_private")),
        may_allow_private=principal.may(Action.ALLOW_PRIVATE_ADDRESS),
        other_ways={name: destination.url(name) for name in ("openapi", "form")},
    )


def add_pool_url(request: HttpRequest) -> HttpResponseBase:
    return add_by_url(request, resolve_principal(request), POOL_DESTINATION)


ServerAdmin.extra_views += (("add/url/", "url", add_pool_url),)


def _keep_token(request: HttpRequest, values: Mapping[str, Any]) -> str:
    """Return the token for the URL: the entered one, or the one of the last check of this URL.

    It is kept encrypted in the session, so that it isn't sent back to the browser.
    """
    url, token = values["url"], values["token"]
    if token:
        request.session[TOKEN_KEY] = {"url": url, "token": seal(token)}
        return str(token)
    stored = request.session.get(TOKEN_KEY)
    if stored and stored["url"] == url:
        return unseal(stored["token"])
    request.session.pop(TOKEN_KEY, None)
    return ""


def _fill_form(form: AddByUrlForm, check: UrlCheck) -> None:
    """Show the URL that answered, and a name unless one was entered."""
    data: Any = form.data.copy()  # type: ignore[attr-defined]  # a QueryDict
    data["url"], data["name"] = check.url, data.get("name") or check.name
    form.data = data


def _build_spec(values: Mapping[str, Any], token: str, *, has_oauth: bool) -> ServerSpec:
    auth_config: dict[str, Any] = {"type": Server.Auth.NONE}
    if has_oauth:
        auth_config = {"type": Server.Auth.OAUTH2, "grant": "authorization_code"}
    elif token:
        auth_config = {"type": Server.Auth.BEARER, "token": token}
    return ServerSpec(
        name=values["name"],
        transport_type=Server.Transport.HTTP,
        endpoint_config={"url": values["url"]},
        auth_config=auth_config,
        allow_private=values["allow_private"],
    )


def _describe_tool(tool: RawDefinition) -> dict[str, Any]:
    """Return a tool with its hints, for the table of what was found."""
    annotations = tool.payload.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    return {
        "name": tool.name,
        "description": str(tool.payload.get("description") or ""),
        "fault": tool.fault,
        "hints": [(text, tone) for name, text, tone in HINTS if hints.get(name) is True],
    }
