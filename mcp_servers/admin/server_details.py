"""Pages of one server: overview, configuration, credentials, sign-in and operations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest
from django.http.response import HttpResponseBase
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
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.masking import MASK
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers import services
from mcp_servers.admin.openapi import (
    DeclaredApiForm,
    OperationForm,
    build_example_request,
    build_operation_initial,
    show_api_configuration,
)
from mcp_servers.admin.review_new_servers import load_new_definitions, show_added_servers
from mcp_servers.admin.server_forms import PROBLEM_FIELDS, ServerForm, build_initial
from mcp_servers.admin.servers import POOL_DESTINATION, ServerAdmin, summarize_discovery
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.discovery import ServerRemoved, discover_servers
from mcp_servers.extension_points import Panel, build_registered_panels
from mcp_servers.flow_labels.effective_labels import LABEL_NAMES
from mcp_servers.flow_labels.store_labels import (
    clear_store_labels,
    get_store_labels,
    list_written_labels,
)
from mcp_servers.models import Definition, HealthCheck, OAuthGrant, Secret, Server
from mcp_servers.models.definitions import AWAITING_REVIEW
from mcp_servers.oauth_client import authorization_code
from mcp_servers.oauth_client.access_tokens import can_authenticate
from mcp_servers.openapi.services import (
    build_operation_preview,
    create_operation,
    delete_operation,
    get_declared_operation,
    is_declared,
    list_declared_operations,
    update_operation,
)
from mcp_servers.reinstall_package import find_server_installation
from mcp_servers.server_config import build_changed_spec, mask_endpoint_config
from mcp_servers.subscriptions.change_notification_status import load_change_notification_status

KIND_NAMES = (
    (Definition.Kind.TOOL, _("tools"), "tools"),
    (Definition.Kind.RESOURCE, _("resources"), "resources"),
    (Definition.Kind.RESOURCE_TEMPLATE, _("resource templates"), "resources"),
    (Definition.Kind.SKILL, _("skills"), "resources"),
    (Definition.Kind.PROMPT, _("prompts"), "prompts"),
)
PACKAGE_STATES = {
    "needed": _("not installed yet"),
    "installing": _("installing"),
    "installed": _("installed"),
    "failed": _("installation failed"),
}
# Configuration field of each secret placement.
CONFIG_FIELDS = {Secret.Placement.HEADER: "headers", Secret.Placement.ENV: "env"}


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
            return _redirect_to_server(visit)
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
            return _redirect_to_server(visit)
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
        return _redirect_to_server(visit)
    return visit.render_tab(
        "openapi/remove_operation.html", server=server, operation=stored_operation
    )


def _build_example_request(
    visit: ObjectRequest, stored_operation: dict[str, Any] | None, url: str
) -> dict[str, Any]:
    if visit.request.method == "POST" or stored_operation is None:
        return build_example_request(visit.request)
    return dict(build_operation_preview(stored_operation, url)["request"])


def _redirect_to_server(visit: ObjectRequest) -> HttpResponseBase:
    return redirect_to_page(visit, "change", "?connect=1" if visit.object.enabled else "")


@ServerAdmin.add_page("change", _("Overview"), order=10)
def show_overview(visit: ObjectRequest) -> HttpResponseBase:
    """Show the server's status, definitions and configuration."""
    server: Server = visit.object
    counts = server.definitions.aggregate(
        pending_review=Count("pk", filter=AWAITING_REVIEW),
        refused=Count("pk", filter=~Q(fault="")),
        **{kind: Count("pk", filter=Q(kind=kind, present=True)) for kind, *_words in KIND_NAMES},
    )
    return visit.render_tab(
        "servers/overview.html",
        server=server,
        counts=[(title, counts[kind], visit.url(tab)) for kind, title, tab in KIND_NAMES],
        review_count=counts["pending_review"],
        refused=counts["refused"],
        endpoint=mask_endpoint_config(server),
        auth=mask_auth_config(server),
        checks=list(server.checks.all()[:60])[::-1],
        package=_describe_package(server) if visit.principal.may(Action.MANAGE_SERVERS) else None,
        connecting="connect" in visit.request.GET,
        notices=load_change_notification_status(server),
        panels=list(_build_panels(visit)),
    )


def _build_panels(visit: ObjectRequest) -> Iterator[Panel]:
    if panel := build_sign_in_panel(visit):
        yield panel
    yield from build_registered_panels(visit)


def _describe_package(server: Server) -> dict[str, Any] | None:
    """Return the installation state of the server's package, with a label."""
    installation = find_server_installation(server)
    return installation and {**installation, "words": PACKAGE_STATES[installation["state"]]}


def _build_fix_url(visit: ObjectRequest, problem: Problem | None) -> str:
    needs_sign_in = problem is not None and problem.code == "needs_reauth"
    secrets = needs_sign_in and visit.object.auth_type != Server.Auth.NONE
    return visit.url("credentials" if secrets else "configuration")


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
    return render_fragment(
        visit.request,
        "servers/connected.html",
        server=visit.object,
        problem=attempt.problem,
        discovery=attempt.result,
        summary=summarize_discovery(attempt.result) if attempt.result else "",
        url=visit.url(),
        definitions_url=visit.url("definitions"),
        correct_url=_build_fix_url(visit, attempt.problem),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
        review=load_new_definitions(visit.object)
        if attempt.result and attempt.result.pending_review
        else None,
        page=visit.request.GET.get("page", ""),
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


@dataclass(frozen=True)
class CredentialField:
    """An encrypted value, shown by name with a field to replace it."""

    secret: Secret
    may_replace: bool

    @property
    def field(self) -> str:
        return f"secret-{self.secret.pk}"


@ServerAdmin.add_page("credentials", _("Credentials"), order=55)
def show_credentials(visit: ObjectRequest) -> HttpResponseBase:
    """Show the encrypted values, or replace those that were filled in."""
    server: Server = visit.object
    credentials = [
        CredentialField(secret, _can_replace(visit, secret)) for secret in _list_secrets(server)
    ]
    if visit.request.method == "POST":
        visit.principal.require(Action.MANAGE_SERVERS)
        posted = visit.request.POST
        new_values = {
            credential.secret: text
            for credential in credentials
            if (text := posted.get(credential.field, "").strip())
        }
        _replace_secrets(visit, new_values)
        text = _t("Replaced: %(names)s. The server is being checked again.")
        names = ", ".join(secret.name for secret in new_values)
        messages.success(visit.request, text % {"names": names})
        return redirect_to_page(visit, "change", "?connect=1" if server.enabled else "")
    auth = mask_auth_config(server)
    public = {name: auth[name] for name in sorted(auth) if name not in ("type", "configured")}
    return visit.render_tab(
        "servers/credentials.html",
        server=server,
        credentials=credentials,
        public=[(name, _format_value(value)) for name, value in public.items()],
        configured=auth["configured"],
        sign_in_panel=build_sign_in_panel(visit),
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
        replaceable=any(credential.may_replace for credential in credentials),
    )


def _list_secrets(server: Server) -> list[Secret]:
    order = list(Secret.Placement)
    rows = list(server.secrets.all())
    return sorted(rows, key=lambda row: (-order.index(Secret.Placement(row.placement)), row.name))


def _can_replace(visit: ObjectRequest, secret: Secret) -> bool:
    """Whether the user may set this value; `env` is for platform administrators only."""
    is_permitted = visit.principal.platform_admin or secret.placement != Secret.Placement.ENV
    return is_permitted and visit.principal.may(Action.MANAGE_SERVERS)


def _replace_secrets(visit: ObjectRequest, new_values: Mapping[Secret, str]) -> None:
    """Replace these secrets; raises `InvalidInput` if there are none."""
    if not new_values:
        raise InvalidInput(
            "No new value was entered.",
            field="value",
            remedy="Fill in the values to replace. Other values stay unchanged.",
        )
    server: Server = visit.object
    endpoint, auth = mask_endpoint_config(server), {"type": server.auth_type, **server.auth_config}
    for secret in server.secrets.all():
        value = new_values.get(secret, MASK)
        if secret.placement == Secret.Placement.AUTH:
            auth[secret.name] = value
        else:
            field = CONFIG_FIELDS[Secret.Placement(secret.placement)]
            endpoint[field] = {**endpoint[field], secret.name: value}
    spec = build_changed_spec(server, endpoint_config=endpoint, auth_config=auth)
    services.update_server(visit.principal, server, spec)


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@ServerAdmin.add_page("configuration", _("Configuration"), order=60)
def show_configuration(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form, or update the server."""
    server: Server = visit.object
    if is_declared(server):
        return show_declared_configuration(visit)
    if not server.speaks_mcp:
        return show_api_configuration(visit)
    posted = visit.request.POST if visit.request.method == "POST" else None
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


@ServerAdmin.add_page("data_labels", _("Data labels"), order=25)
def show_data_labels(visit: ObjectRequest) -> HttpResponseBase:
    """Show the labels of the server's data and the calls that added them."""
    server: Server = visit.object
    labels = get_store_labels(server)
    written_labels = [
        (entry, [LABEL_NAMES[label] for label in entry.labels])
        for entry in list_written_labels(server)
    ]
    return visit.render_tab(
        "servers/data_labels.html",
        server=server,
        labels=[LABEL_NAMES[label] for label in labels],
        seen_labels=" ".join(labels),
        written_labels=written_labels,
        may_clear=visit.principal.may(Action.APPROVE_DEFINITIONS),
        may_audit=visit.principal.may(Action.VIEW_AUDIT),
    )


@ServerAdmin.add_object_action("clear_data_labels", required_actions=Action.APPROVE_DEFINITIONS)
def clear_data_labels(visit: ObjectRequest) -> HttpResponseBase | None:
    """Clear the labels of the server's data, unless it got others since the page was loaded."""
    clear_store_labels(visit.principal, visit.object, seen_labels=read_seen_labels(visit))
    messages.success(visit.request, _t("Data labels cleared. Effective immediately."))
    return redirect_to_page(visit, "data_labels")


def read_seen_labels(visit: ObjectRequest) -> list[str] | None:
    """Return the labels that the page of a form to clear them showed, None if it isn't sent."""
    seen_labels = visit.request.POST.get("seen_labels")
    return None if seen_labels is None else seen_labels.split()
