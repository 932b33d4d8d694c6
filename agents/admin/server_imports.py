"""Import of servers from pasted or uploaded text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.html import format_html
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.server_imports import ServerImport, apply_import, plan_import
from bonobot.accounts.admin_base import format_problem
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.json_reader import MAX_TEXT_BYTES
from mcp_servers.admin.add_servers import ServerDestination
from mcp_servers.admin.review_new_servers import (
    ALLOW_PARAMETER,
    DRAFT_PARAMETER,
    NOT_SELECTED,
    FailedServer,
    build_added_url,
    build_draft_url,
    save_failures,
)
from mcp_servers.admin.servers import POOL_DESTINATION, ServerAdmin
from mcp_servers.bundles.archive import MAX_ARCHIVE_BYTES, is_bundle
from mcp_servers.bundles.services import store_bundle
from mcp_servers.import_export.fill_placeholders import ImportParameter
from mcp_servers.import_export.import_drafts import (
    DraftContent,
    find_draft,
    load_content,
    save_draft,
)
from mcp_servers.import_export.import_plan import ImportChoices, PlannedServer
from mcp_servers.import_export.parse_servers import parse_import
from mcp_servers.import_export.registry_client import fetch_registry
from mcp_servers.models import ImportDraft, Server

PARAMETER_PREFIX, NAME_PREFIX = "parameter-", "name-"
MAX_FILE_BYTES = 1024 * 1024  # bytes that are read; the parser refuses more than 256 KiB


# State, its words, icon and tone, in the order of the filter.
STATES = (
    ("ready", _("Ready"), "check_circle", "good"),
    ("credential", _("Credential"), "lock", "warn"),
    ("permission", _("Permission"), "gpp_maybe", "warn"),
    ("exists", _("Exists already"), "check_circle", "plain"),
    ("refused", _("Can't be added"), "block", "trust"),
)


@dataclass(frozen=True)
class ImportField:
    """A value to fill in a row; `elsewhere` names the row that has its input already."""

    parameter: ImportParameter
    value: str
    elsewhere: str = ""
    is_needed: bool = True  # bundles have optional values, too


@dataclass(frozen=True)
class ImportRow:
    """A server of the text: `problems` are those that a permission or a value wouldn't solve.

    `existing` is the server that has its name already, `new_name` the one that was entered instead.
    """

    planned: PlannedServer
    shown: Any
    problems: tuple[Problem, ...]
    fields: tuple[ImportField, ...]
    kept_tools: tuple[str, ...]
    sign_in: Any
    existing: Server | None = None
    new_name: str = ""

    @property
    def transport(self) -> Any:
        transport = self.planned.entry.transport_type
        return dict(Server.Transport.choices).get(transport, transport)

    @property
    def state(self) -> str:
        """Return `ready`, `credential`, `permission`, `exists` or `refused`."""
        if self.existing and self.problems:
            return "exists"
        if self.problems:
            return "refused"
        if self.needs_values:
            return "credential"
        return "permission" if self.needs_permission else "ready"

    @property
    def needs_values(self) -> bool:
        return any(field.is_needed and not field.value for field in self.fields)

    @property
    def needs_permission(self) -> bool:
        """Return whether it isn't added before its private address is allowed."""
        return not self.needs_values and any(
            problem.code == "private_address" for problem in self.planned.problems
        )

    @property
    def needed_values(self) -> str:
        """Return the names of the values that it needs, separated by spaces."""
        return " ".join(field.parameter.name for field in self.fields if field.is_needed)

    @property
    def words(self) -> tuple[Any, str, str]:
        """Return the word, icon and tone of its state."""
        return next(state_texts for state, *state_texts in STATES if state == self.state)  # type: ignore[return-value]

    @property
    def target(self) -> str:
        """Return what it connects to: a URL or a command."""
        return _describe_target(self.planned.entry.endpoint_config)

    @property
    def existing_target(self) -> str:
        """Return what the existing server connects to, "" without one."""
        return _describe_target(self.existing.endpoint_config) if self.existing else ""

    @property
    def has_same_target(self) -> bool:
        """Return whether the existing server connects to the same."""
        return self.existing is not None and self.existing_target == self.target

    @property
    def can_be_renamed(self) -> bool:
        """Return whether another name would add it, or an entered one does."""
        is_taken = any(problem.code == "name_taken" for problem in self.problems)
        return bool(self.new_name) or (is_taken and not self.has_same_target)

    @property
    def selected(self) -> bool:
        """Return whether it is selected; what can't be added yet isn't."""
        return self.planned.ready


def _describe_target(config: Mapping[str, Any]) -> str:
    if url := config.get("url"):
        return str(url)
    return " ".join(map(str, (config.get("command", ""), *config.get("args", ()))))


def _build_preview(planned: PlannedServer) -> dict[str, Any]:
    """Return the preview of an entry; its state says that a private address needs permission."""
    preview = planned.entry.build_preview()
    if planned.private:
        preview["notices"] = [
            notice for notice in preview["notices"] if notice["code"] != "private_address"
        ]
    return preview


def find_existing_servers(server_import: ServerImport, scope_id: UUID) -> dict[str, Server]:
    """Return the servers that have the name of an entry already, by name (one query)."""
    names = [
        planned.entry.name
        for planned in server_import.planned
        if any(problem.code == "name_taken" for problem in planned.problems)
    ]
    rows = Server.objects.in_scope(scope_id).filter(name__in=names)
    return {server.name: server for server in rows}


def build_import_rows(
    server_import: ServerImport,
    text: str,
    choices: ImportChoices,
    existing: Mapping[str, Server],
) -> list[ImportRow]:
    """Return the rows, with the values and names of `choices` that were filled in."""
    # Filled parameters are no longer listed by an entry, but stay in the form.
    parameters = {
        entry.name: entry.parameters
        for entry in parse_import(text)
        if "bundle" not in entry.endpoint_config  # its entry lists all of them
    }
    rows: list[ImportRow] = []
    owners: dict[str, str] = {}
    for planned in server_import.planned:
        name = planned.entry.name
        missing = {p.field for p in planned.problems if p.code == "missing_value"}
        fields = tuple(
            ImportField(
                parameter,
                choices.values.get(parameter.name, ""),
                elsewhere=""
                if owners.setdefault(parameter.name, name) == name
                else owners[parameter.name],
                is_needed=name in parameters or not missing.isdisjoint(parameter.fields),
            )
            for parameter in parameters.get(name, planned.entry.parameters)
        )
        rows.append(
            ImportRow(
                planned,
                shown=_build_preview(planned),
                problems=tuple(_list_other_problems(planned)),
                fields=fields,
                kept_tools=server_import.overrides.only_tools.get(name, ()),
                sign_in=_describe_sign_in(planned),
                existing=existing.get(name),
                new_name=choices.new_names.get(name, ""),
            )
        )
    return rows


def count_import_states(rows: Sequence[ImportRow]) -> list[tuple[str, Any, int]]:
    """Return the states with their words and number of rows."""
    states = [row.state for row in rows]
    return [(state, title, states.count(state)) for state, title, *_more in STATES]


def count_selected_rows(rows: Sequence[ImportRow]) -> dict[str, int]:
    """Return how many rows are selected, need values, or need a permission."""
    open_rows = [row for row in rows if not row.problems]
    return {
        "selected": sum(row.selected for row in rows),
        "values": sum(row.needs_values for row in open_rows),
        "permission": sum(row.needs_permission for row in open_rows),
    }


def _list_other_problems(planned: PlannedServer) -> list[Problem]:
    return [
        problem
        for problem in planned.problems
        if problem.code != "missing_value"
        and not (planned.private and problem.code == "private_address")
    ]


def _describe_sign_in(planned: PlannedServer) -> Any:
    """Return the title of an entry's authentication, "" if it has none."""
    kind = planned.entry.auth_type
    return "" if kind == Server.Auth.NONE else dict(Server.Auth.choices).get(kind, kind)


def import_servers(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Show the form or a preview, or store what was posted as a draft and add its servers.

    Each answer to a POST is a redirect to a page that can be reloaded, unless nothing was read.
    """
    principal.require(destination.required_action)
    draft = find_draft(principal, request.GET.get(DRAFT_PARAMETER, ""))
    if request.method != "POST":
        return _show_draft(request, principal, destination, draft)
    text = request.POST.get("text", "")
    if draft is not None and "seen" in request.POST and not text.strip():
        # A preview doesn't show the text, which can contain credentials; the draft keeps it.
        text = load_content(draft).text
    try:
        text = _read_upload(request, principal) or _read_registry(request, principal) or text
    except Problem as problem:
        return _render_page(request, destination, text, problem=problem, status=400)
    content = _read_content(request, principal, text, draft)
    try:
        server_import = _plan_draft(principal, content, destination)
    except Problem as problem:
        if not text.strip() or len(text.encode()) > MAX_TEXT_BYTES:
            return _render_page(request, destination, text, problem=problem, status=400)
        return _redirect_to_draft(destination, save_draft(principal, content, draft))
    # A person sees what a registry returned or a bundle contains before anything is added.
    is_unseen = request.POST.get("registry") or _has_bundle(request)
    if request.POST.get("do") != "add" or is_unseen:
        return _redirect_to_draft(destination, save_draft(principal, content, draft))
    return _apply_import(request, principal, destination, server_import, content, draft)


def _show_draft(
    request: HttpRequest,
    principal: Principal,
    destination: ServerDestination,
    draft: ImportDraft | None,
) -> HttpResponseBase:
    """Show the preview of a draft, or the form without one or if its text can't be parsed.

    The page can preselect the permission for private addresses; nothing is added without a POST.
    """
    if draft is None:
        is_expired = DRAFT_PARAMETER in request.GET
        return _render_page(request, destination, "", is_expired=is_expired)
    content = load_content(draft)
    try:
        server_import = _plan_draft(principal, content, destination)
        if request.GET.get(ALLOW_PARAMETER) and principal.may(Action.ALLOW_PRIVATE_ADDRESS):
            private = tuple(row.entry.name for row in server_import.planned if row.private)
            content = replace(content, chosen=private, allow_private=private)
            server_import = _plan_draft(principal, content, destination)
    except Problem as problem:
        return _render_page(request, destination, content.text, draft=draft, problem=problem)
    return _render_page(
        request,
        destination,
        content.text,
        draft=draft,
        server_import=server_import,
        content=content,
    )


def _redirect_to_draft(destination: ServerDestination, draft: ImportDraft) -> HttpResponseRedirect:
    return HttpResponseRedirect(build_draft_url(destination, draft))


def _plan_draft(
    principal: Principal, content: DraftContent, destination: ServerDestination
) -> ServerImport:
    """Return the plan of the servers that are left to add."""
    server_import = plan_import(
        principal, content.text, content.build_choices(destination.scope_id)
    )
    if content.remaining is not None:
        server_import.planned = [
            row for row in server_import.planned if row.entry.name in content.remaining
        ]
        server_import.shares = ()  # applied with the servers that were added
    return server_import


def import_organization_servers(request: HttpRequest) -> HttpResponseBase:
    return import_servers(request, resolve_principal(request), POOL_DESTINATION)


ServerAdmin.extra_views += (("add/paste/", "paste", import_organization_servers),)


def _read_upload(request: HttpRequest, principal: Principal) -> str:
    """Return the text of the uploaded file or bundle, "" without one."""
    file = request.FILES.get("file")
    if file is None:
        return ""
    data = bytes(file.read(MAX_ARCHIVE_BYTES + 1))
    if is_bundle(data):
        return store_bundle(principal, data)
    try:
        return data[:MAX_FILE_BYTES].decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(
            "The file isn't UTF-8 text.",
            code="not_text",
            field="file",
            remedy="Choose the client's JSON or YAML configuration file, or a `.mcpb` bundle.",
        ) from None


def _has_bundle(request: HttpRequest) -> bool:
    """Tell whether the uploaded file is a bundle."""
    file = request.FILES.get("file")
    if file is None:
        return False
    file.seek(0)
    return is_bundle(bytes(file.read(4)))


def _read_registry(request: HttpRequest, principal: Principal) -> str:
    """Return the servers of the registry with the posted URL, "" without one."""
    url = request.POST.get("registry", "").strip()
    search = request.POST.get("search", "").strip()
    return fetch_registry(principal, url, search=search) if url else ""


def _apply_import(
    request: HttpRequest,
    principal: Principal,
    destination: ServerDestination,
    server_import: ServerImport,
    content: DraftContent,
    draft: ImportDraft | None,
) -> HttpResponseBase:
    """Apply the import; each chosen entry is created completely or keeps its problems.

    The draft keeps the servers that are left to add; without any, it is deleted.
    """
    if not content.is_attaching:
        server_import.shares = ()
    existing = find_existing_servers(
        server_import, destination.scope_id or principal.organization_id
    )
    apply_import(principal, server_import, create=destination.create_server)
    failures = _list_failures(server_import, existing)
    if not server_import.added and not any(
        attachment.action in ("attach", "detach") for attachment in server_import.shares
    ):
        if "seen" in request.POST:  # else the preview, which opens now, says what they need
            messages.warning(request, _t("No servers were added."))
        return _redirect_to_draft(destination, save_draft(principal, content, draft))
    _add_attachment_messages(request, server_import)
    if remaining := tuple(failure.name for failure in failures if not failure.exists):
        content = replace(content, remaining=remaining, chosen=None)
        draft = save_draft(principal, content, draft)
    elif draft is not None:
        draft.delete()
        draft = None
    # A page that can be reloaded: it adds nothing again.
    added_servers = list(server_import.added.values())
    return HttpResponseRedirect(
        build_added_url(destination, added_servers, save_failures(request, failures, draft))
    )


def _list_failures(
    server_import: ServerImport, existing: Mapping[str, Server]
) -> list[FailedServer]:
    """Return all servers that weren't added, with what they need."""
    failures = []
    for planned in server_import.planned:
        entry = planned.entry
        if server_import.find_server(planned) is not None:
            continue
        problem = server_import.problems_by_name.get(entry.name) or next(
            iter(planned.problems), None
        )
        if problem is None:  # deselected in the preview
            failures.append(FailedServer(entry.name, entry.line, "–", "", "", NOT_SELECTED))
        else:
            exists = problem.code == "name_taken" and entry.name in existing
            failures.append(
                FailedServer.from_problem(entry.name, entry.line, problem, exists=exists)
            )
    return failures


def _add_attachment_messages(request: HttpRequest, server_import: ServerImport) -> None:
    """Report the results of attachments."""
    for attachment in server_import.shares:
        target = {"server": attachment.share.server, "agent": attachment.agent}
        if attachment.problem:
            text = _t("%(server)s was not attached to %(agent)s") % target
            messages.error(request, format_html("{}: {}", text, format_problem(attachment.problem)))
        elif attachment.action == "attach":
            messages.success(request, _t("%(server)s was attached to %(agent)s.") % target)
        elif attachment.action == "detach":
            messages.success(request, _t("%(server)s was detached from %(agent)s.") % target)


def _list_document_notices(rows: Sequence[ImportRow]) -> list[Any]:
    """Return the notices that all servers have: they are about the whole text."""
    first, *others = [row.shown["notices"] for row in rows] or [[]]
    return [notice for notice in first if all(notice in notices for notices in others)]


def _render_page(
    request: HttpRequest,
    destination: ServerDestination,
    text: str,
    *,
    draft: ImportDraft | None = None,
    server_import: ServerImport | None = None,
    content: DraftContent | None = None,
    problem: Problem | None = None,
    is_expired: bool = False,
    status: int = 200,
) -> HttpResponseBase:
    rows: list[ImportRow] = []
    if server_import and content:
        scope_id = destination.scope_id or resolve_principal(request).organization_id
        existing = find_existing_servers(server_import, scope_id)
        choices = content.build_choices(destination.scope_id)
        rows = build_import_rows(server_import, text, choices, existing)
    return destination.render_page(
        request,
        "paste",
        "server_imports/paste.html",
        status=status,
        text=text,
        form_url=build_draft_url(destination, draft) if draft else destination.url("paste"),
        is_expired=is_expired,
        registry=request.POST.get("registry", ""),
        search=request.POST.get("search", ""),
        rows=rows,
        document_notices=_list_document_notices(rows),
        states=count_import_states(rows),
        counts=count_selected_rows(rows),
        private=[row for row in rows if row.planned.private and not row.problems],
        shares=server_import.shares if server_import else (),
        overrides=server_import.overrides if server_import else None,
        is_attaching=content is None or content.is_attaching,
        problem=problem,
    )


def _read_content(
    request: HttpRequest, principal: Principal, text: str, draft: ImportDraft | None
) -> DraftContent:
    """Return the text with the posted choices; those of another text have no servers left out."""
    posted: Any = request.POST
    previous = load_content(draft) if draft else None
    # Browsers change the line breaks of a text.
    is_same_text = previous is not None and previous.text.split() == text.split()
    can_allow_private = principal.may(Action.ALLOW_PRIVATE_ADDRESS)
    return DraftContent(
        text=text,
        values=_read_prefixed_fields(request, PARAMETER_PREFIX),
        new_names=_read_prefixed_fields(request, NAME_PREFIX),
        allow_private=tuple(posted.getlist("private")) if can_allow_private else (),
        chosen=tuple(posted.getlist("add")) if "seen" in posted else None,
        remaining=previous.remaining if previous and is_same_text else None,
        is_attaching="seen" not in posted or "overrides" in posted,
    )


def _read_prefixed_fields(request: HttpRequest, prefix: str) -> dict[str, str]:
    """Return the fields that aren't blank, by the rest of their names."""
    return {
        name.removeprefix(prefix): str(value).strip()
        for name, value in request.POST.items()
        if name.startswith(prefix) and str(value).strip()
    }
