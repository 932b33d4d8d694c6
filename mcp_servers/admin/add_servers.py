"""Pages that add a server, to the pool or to an agent: where it goes, and the form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import add_problem_to_form, render_screen
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Problem
from mcp_servers import services
from mcp_servers.admin.server_forms import PROBLEM_FIELDS, ServerForm
from mcp_servers.models import Preset, Server
from mcp_servers.server_config import ServerSpec


@dataclass(frozen=True, kw_only=True)
class ServerDestination:
    """The scope that a new server is created in, with its URLs and follow-up.

    `url` returns the URL of a page (`form`, `presets`, `preset` with a slug, `url`, `paste`,
    `openapi`, `operations`, `added`);
    `build_next_url` returns the redirect after one server, `onward` is the link after several.
    """

    title: Any
    required_action: Action
    url: Callable[..., str]
    build_next_url: Callable[[Server], str]
    scope_id: UUID | None = None
    onward: Any = ""
    on_created: Callable[[Principal, Server], object] = lambda principal, server: None

    def create_server(
        self, principal: Principal, spec: ServerSpec, preset: Preset | None = None
    ) -> Server:
        """Create a server here and run `on_created`, in one transaction."""
        principal.require(self.required_action)
        with transaction.atomic():
            server = services.create_server(principal, spec, scope_id=self.scope_id, preset=preset)
            self.on_created(principal, server)
        return server

    def build_tabs(self, active: str = "") -> list[dict[str, Any]]:
        """Return the ways to add a server, with their names on all screens."""
        titles = {
            "presets": _("Presets"),
            "url": "URL",
            "paste": _("Paste JSON"),
            "openapi": "OpenAPI",
            "operations": _("HTTP operations"),
            "form": _("Enter manually"),
        }
        return [
            {"title": title, "url": self.url(slug), "active": slug == active}
            for slug, title in titles.items()
        ]

    def render_page(
        self,
        request: HttpRequest,
        active_tab: str,
        template: str,
        *,
        status: int = 200,
        **context: Any,
    ) -> HttpResponseBase:
        return render_screen(
            request,
            template,
            title=self.title,
            status=status,
            opts=Server._meta,
            destination=self,
            tabs=self.build_tabs(active_tab),
            **context,
        )


def add_by_form(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Show the form, or create the server."""
    principal.require(destination.required_action)
    form = ServerForm(principal, request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            server = destination.create_server(principal, form.build_spec())
        except Problem as problem:
            add_problem_to_form(form, problem, PROBLEM_FIELDS)
            if problem.field != "name":
                _check_name(form, destination.scope_id or principal.organization_id)
        else:
            return redirect_after_add(request, destination, server)
    return destination.render_page(request, "form", "servers/add_by_form.html", form=form)


def _check_name(form: ServerForm, scope_id: UUID) -> None:
    """Add the problem of the name, so that it is corrected together with another field."""
    try:
        services.check_name_free(scope_id, form.cleaned_data["name"])
    except Problem as problem:
        add_problem_to_form(form, problem)


def redirect_after_add(
    request: HttpRequest, destination: ServerDestination, server: Server
) -> HttpResponseRedirect:
    """Go to the sign-in of a new server if it needs one, otherwise to the destination's page."""
    messages.success(request, _t("%(server)s was added.") % {"server": server})
    if server.interactive:  # discovery needs a person to sign in first
        return HttpResponseRedirect(reverse("oauth:start", args=[server.pk]))
    return HttpResponseRedirect(destination.build_next_url(server))
