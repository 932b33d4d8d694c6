"""Pages of one server: overview, connection and sign-in."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import (
    ObjectRequest,
    add_problem_to_form,
    redirect_to_page,
    render_fragment,
)
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import TextInput
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.admin.usage import build_time_filters
from bonobot.ledger.usage.aggregation import truncate_time
from bonobot.ledger.usage.query_rollups import ReportSpan, open_reader, to_utc
from mcp_servers.admin.review_new_servers import (
    NewDefinitions,
    load_new_definitions,
    show_added_servers,
)
from mcp_servers.admin.servers import (
    POOL_DESTINATION,
    ServerAdmin,
    add_discovery_messages,
    redirect_to_server,
    summarize_discovery,
)
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.definition_counts import DefinitionCounts, count_definitions
from mcp_servers.discovery import ServerRemoved, discover_servers
from mcp_servers.extension_points import Panel, build_registered_panels
from mcp_servers.missing_paths import MissingPath, correct_path, find_missing_path
from mcp_servers.models import Definition, HealthCheck, OAuthGrant, Server
from mcp_servers.oauth_client import authorization_code
from mcp_servers.oauth_client.access_tokens import can_authenticate
from mcp_servers.reinstall_package import find_server_installation
from mcp_servers.server_config import mask_endpoint_config
from mcp_servers.subscriptions.change_notification_status import load_change_notification_status

KIND_NAMES = (
    (Definition.Kind.TOOL, _("tools"), "tools"),
    (Definition.Kind.RESOURCE, _("resources"), "resources"),
    (Definition.Kind.RESOURCE_TEMPLATE, _("resource templates"), "resources"),
    (Definition.Kind.SKILL, _("skills"), "resources"),
    (Definition.Kind.PROMPT, _("prompts"), "prompts"),
    (Definition.Kind.INSTRUCTIONS, _("instructions"), "prompts"),
)
MAX_FLAGGED_SHOWN = 5
PACKAGE_STATES = {
    "needed": _("not installed yet"),
    "installing": _("installing"),
    "installed": _("installed"),
    "failed": _("installation failed"),
}


class MissingPathForm(forms.Form):
    """The folder or path that a server didn't find."""

    path = forms.CharField(label=_("Folder"), max_length=1_000, widget=TextInput)

    def __init__(self, missing: MissingPath, data: Any = None) -> None:
        """Suggest the folder that the sandbox could show."""
        super().__init__(data, initial={"path": missing.suggestion})
        if not missing.is_folder and not missing.is_hidden:
            self.fields["path"].label = _("Path")


@ServerAdmin.add_page("change", _("Overview"), order=10)
def show_overview(visit: ObjectRequest) -> HttpResponseBase:
    """Show the server's status, definitions and configuration."""
    return _render_overview(visit, _build_path_form(visit))


def _build_path_form(visit: ObjectRequest) -> MissingPathForm | None:
    """Return the form for those who may set a command; None if no path is missing."""
    may_set = visit.principal.may(Action.MANAGE_LAUNCHERS)
    missing = find_missing_path(visit.object) if may_set else None
    return MissingPathForm(missing) if missing else None


@ServerAdmin.add_object_action("path", required_actions=Action.MANAGE_LAUNCHERS)
def set_path(visit: ObjectRequest) -> HttpResponseBase | None:
    """Correct the path that the server didn't find, and connect it again."""
    missing = find_missing_path(visit.object)
    if missing is None:
        return redirect_to_page(visit, "change")
    form = MissingPathForm(missing, visit.request.POST)
    if form.is_valid():
        try:
            correct_path(visit.principal, visit.object, missing, form.cleaned_data["path"])
        except Problem as problem:
            visit.object.refresh_from_db()
            add_problem_to_form(form, problem)
        else:
            return redirect_to_server(visit)
    return _render_overview(replace(visit, page="change"), form)


def _render_overview(visit: ObjectRequest, path_form: MissingPathForm | None) -> HttpResponseBase:
    server: Server = visit.object
    counts = count_definitions([server])[server.pk]
    return visit.render_tab(
        "servers/overview.html",
        server=server,
        # Few servers have the other kinds: a zero of each would only hide the numbers.
        counts=[
            (title, counts.declared[kind], visit.url(tab))
            for kind, title, tab in KIND_NAMES
            if (counts.declared[kind] and kind != Definition.Kind.INSTRUCTIONS)
            or kind == Definition.Kind.TOOL
        ],
        usage=_load_last_day(visit) if visit.principal.may(Action.VIEW_AUDIT) else None,
        review=_summarize_reviews(visit, counts),
        path_form=path_form,
        refused=counts.refused,
        endpoint=mask_endpoint_config(server),
        auth=mask_auth_config(server),
        checks=list(server.checks.all()[:60])[::-1],
        package=_describe_package(server) if visit.principal.may(Action.MANAGE_SERVERS) else None,
        connecting="connect" in visit.request.GET,
        new_definitions=_load_new_definitions(visit) if counts.pending_total else None,
        notices=load_change_notification_status(server),
        panels=list(_build_panels(visit)),
    )


def _load_new_definitions(visit: ObjectRequest) -> NewDefinitions | None:
    """Return what can be approved at once when the server was just connected."""
    may_approve = visit.principal.may(Action.APPROVE_DEFINITIONS)
    is_new = may_approve and "connected" in visit.request.GET
    return load_new_definitions(visit.object) if is_new else None


def _summarize_reviews(visit: ObjectRequest, counts: DefinitionCounts) -> dict[str, Any]:
    """Return the definitions pending review: how many of each kind, and the flagged ones."""
    flagged = visit.object.definitions.awaiting_review().exclude(findings=[])
    return {
        "total": counts.pending_total,
        "kinds": [
            (title, counts.pending[kind], visit.url(tab))
            for kind, title, tab in KIND_NAMES
            if counts.pending[kind]
        ],
        "flagged": flagged.order_by("kind", "name")[: MAX_FLAGGED_SHOWN + 1]
        if counts.pending_total
        else (),
    }


def _load_last_day(visit: ObjectRequest) -> dict[str, Any]:
    """Return the organization's calls of the last 24 hours, and where the audit log lists them."""
    since = truncate_time(to_utc(timezone.now()), "hour") - timedelta(hours=23)
    reader = open_reader(visit.principal.organization_id, ReportSpan(since, None, "hour"))
    query = {"kind": "call", "server_id": visit.object.pk, **build_time_filters(since)}
    return {
        "line": reader.load_total(timed=True, server_id=visit.object.pk),
        "url": f"{reverse('admin:ledger_auditrow_changelist')}?{urlencode(query)}",
        "failed": urlencode({"outcome__in": "error"}),
    }


def _build_panels(visit: ObjectRequest) -> Iterator[Panel]:
    if panel := build_sign_in_panel(visit):
        yield panel
    yield from build_registered_panels(visit)


def _describe_package(server: Server) -> dict[str, Any] | None:
    """Return the installation state of the server's package, with a label."""
    installation = find_server_installation(server)
    return installation and {**installation, "words": PACKAGE_STATES[installation["state"]]}


def show_added_pool_servers(request: HttpRequest) -> HttpResponseBase:
    """Connect and review servers that were added to the pool."""
    return show_added_servers(request, resolve_principal(request), POOL_DESTINATION)


ServerAdmin.extra_views += (("add/added/", "added", show_added_pool_servers),)


@ServerAdmin.add_object_action("connect", required_actions=Action.MANAGE_SERVERS)
def connect_server(visit: ObjectRequest) -> HttpResponseBase:
    """Discover the server and render the result as a fragment."""
    [attempt] = discover_servers(
        [visit.object], actor=visit.principal.actor, kind=HealthCheck.Kind.DISCOVERY
    )
    if isinstance(attempt.problem, ServerRemoved):
        raise attempt.problem
    visit.object.refresh_from_db()
    is_overview = visit.request.GET.get("page") == "change"
    if is_overview and attempt.result:
        add_discovery_messages(visit.request, [attempt])
    return render_fragment(
        visit.request,
        "servers/connected.html",
        server=visit.object,
        problem=attempt.problem,
        summary=summarize_discovery(attempt.result) if attempt.result else "",
        next_url=f"{visit.url()}?connected=1" if is_overview else "",
    )


def build_sign_in_panel(visit: ObjectRequest) -> Panel | None:
    """Return the sign-in panel, or None if the server needs no sign-in."""
    server: Server = visit.object
    if not server.interactive:
        return None
    per_person = server.by_person
    subject = visit.principal.id if per_person else server.organization_id
    has_no_grant = per_person and visit.principal.kind != "user"
    grant = (
        None if has_no_grant else OAuthGrant.objects.filter(server=server, subject=subject).first()
    )
    is_active = grant is not None and can_authenticate(grant)
    needed_actions = (
        authorization_code.PERSONAL_LOGIN_ACTIONS if per_person else (Action.MANAGE_SERVERS,)
    )
    return "admin/servers/sign_in.html", {
        "each": per_person,
        "grant": grant if is_active else None,
        "may_sign_in": any(visit.principal.may(action) for action in needed_actions),
    }


@ServerAdmin.add_object_action(
    "sign-out", required_actions=(Action.MANAGE_SERVERS, *authorization_code.PERSONAL_LOGIN_ACTIONS)
)
def sign_out_of_server(visit: ObjectRequest) -> None:
    """Delete the organization's or the user's tokens, depending on the server's `per`."""
    authorization_code.sign_out(visit.principal, visit.object)
    text = _t("Signed out of %(server)s.")
    messages.success(visit.request, text % {"server": make_visible(visit.object.name)})
