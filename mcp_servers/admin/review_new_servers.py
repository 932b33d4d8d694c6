"""Review the definitions of servers while they are added.

Definitions without findings and risks that change nothing are preselected, and one button approves
them. Suspicious and changed ones are listed with a link to their own review.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.localization import join_names, localize_text
from bonobot.core.problems import Conflict, InvalidInput, Problem
from mcp_servers.admin.add_servers import ServerDestination
from mcp_servers.admin.definition_rows import (
    TOOLS_FIRST,
    DefinitionRow,
    build_definition_row,
    describe_approved_count,
    parse_shown_digests,
)
from mcp_servers.definition_reviews import approve_definitions, needs_own_review
from mcp_servers.flow_labels.effective_labels import load_label_context
from mcp_servers.health.server_status import INSTALLING
from mcp_servers.import_export.import_drafts import find_draft, load_content
from mcp_servers.models import ImportDraft, Server

MAX_SHOWN = 200
MAX_NAMES = 3
# Codes that mean the same for each server; other ones are grouped by their texts.
GROUPED_CODES = (INSTALLING, "server_unreachable", "installation_failed", "needs_reauth")
SEPARATOR = "."
FAILURES, MAX_KEPT = "import_results", 5  # in the session
DRAFT_PARAMETER, ALLOW_PARAMETER = "draft", "allow"
PRIVATE_ADDRESS, MISSING_VALUE = "private_address", "missing_value"
NOT_SELECTED = "not_selected"


@dataclass(frozen=True)
class NewDefinitions:
    """The definitions of a server that are pending review.

    `clean_rows` can be selected, and are unless they are risky or change something; `other_rows`
    need their own review; `hidden_count` are not shown.
    """

    clean_rows: list[DefinitionRow]
    other_rows: list[DefinitionRow]
    hidden_count: int

    @property
    def selected_count(self) -> int:
        """Return the number of preselected definitions."""
        return sum(item.is_preselected for item in self.clean_rows)


def load_new_definitions(server: Server) -> NewDefinitions:
    """Return the pending definitions of a server, at most `MAX_SHOWN`."""
    pending = server.definitions.awaiting_review().order_by(TOOLS_FIRST, "kind", "name")
    label_context = load_label_context(server)
    rows = [build_definition_row(row, label_context) for row in pending[:MAX_SHOWN]]
    return NewDefinitions(
        clean_rows=[item for item in rows if not needs_own_review(item.row)],
        other_rows=[item for item in rows if needs_own_review(item.row)],
        hidden_count=max(0, pending.count() - MAX_SHOWN),
    )


def build_added_url(
    destination: ServerDestination, servers: Sequence[Server], failures_key: str = ""
) -> str:
    """Return the URL of the page that connects and reviews added servers.

    `failures_key` is the result of `save_failures`.
    """
    query = {"servers": SEPARATOR.join(server.pk.hex for server in servers)}
    if failures_key:
        query["failures"] = failures_key
    return f"{destination.url('added')}?{urlencode(query)}"


@dataclass(frozen=True)
class FailedServer:
    """A server of an import that wasn't added, and why; `exists` if it was added before."""

    name: str
    line: int
    field: str
    text: str
    remedy: str
    code: str
    exists: bool = False

    @property
    def is_skipped(self) -> bool:
        """Whether nothing is wrong with it: it was deselected in the preview."""
        return self.code == NOT_SELECTED

    @classmethod
    def from_problem(
        cls, name: str, line: int, problem: Problem, *, exists: bool = False
    ) -> "FailedServer":
        """Return the failure with the texts of a problem."""
        remedy = localize_text(problem.remedy) if problem.remedy else ""
        text = localize_text(str(problem))
        return cls(name, line, problem.field or "–", text, remedy, problem.code, exists)


@dataclass(frozen=True)
class FailureGroup:
    """The failures of an import with the same problem and the same remedy."""

    failures: list[FailedServer]

    @property
    def is_private_address(self) -> bool:
        """Whether one permission solves all of them."""
        return self.failures[0].code == PRIVATE_ADDRESS

    @property
    def is_missing_value(self) -> bool:
        """Whether each lacks a value, such as a token."""
        return self.failures[0].code == MISSING_VALUE


def group_failures(failures: Iterable[FailedServer]) -> list[FailureGroup]:
    """Return the failures by problem and remedy, in the order of the first ones."""
    groups: dict[tuple[str, str], list[FailedServer]] = {}
    for failure in failures:
        # The remedy names the value, which each has its own.
        remedy = "" if failure.code == MISSING_VALUE else failure.remedy
        groups.setdefault((failure.code, remedy), []).append(failure)
    return [FailureGroup(members) for members in groups.values()]


def save_failures(
    request: HttpRequest, failures: Sequence[FailedServer], draft: ImportDraft | None
) -> str:
    """Keep the failures of an import in the session, so that its page can be reloaded.

    Returns their key, "" without failures. A session has those of the last `MAX_KEPT` imports;
    `draft` has the text to add the servers again.
    """
    if not failures:
        return ""
    key = secrets.token_hex(4)
    recent_results = list(request.session.get(FAILURES, {}).items())[-(MAX_KEPT - 1) :]
    request.session[FAILURES] = {
        **dict(recent_results),
        key: {
            "draft": draft.pk.hex if draft else "",
            "failures": [asdict(failure) for failure in failures],
        },
    }
    return key


@dataclass(frozen=True)
class ImportResults:
    """The servers of an import that weren't added; `draft` has those that are left to add."""

    failures: list[FailedServer]
    existing_names: list[str]
    skipped_names: list[str]
    draft: ImportDraft | None

    @property
    def remaining_count(self) -> int:
        """Return how many servers are left to add, also after a later import of some of them."""
        return len(load_content(self.draft).remaining or ()) if self.draft else 0


def _load_results(request: HttpRequest, principal: Principal) -> ImportResults:
    result = request.session.get(FAILURES, {}).get(request.GET.get("failures", ""), {})
    rows = [FailedServer(**row) for row in result.get("failures", ())]
    return ImportResults(
        failures=[row for row in rows if not row.exists and not row.is_skipped],
        existing_names=[row.name for row in rows if row.exists],
        skipped_names=[row.name for row in rows if row.is_skipped],
        draft=find_draft(principal, result.get("draft", "")),
    )


def build_draft_url(destination: ServerDestination, draft: ImportDraft) -> str:
    """Return the URL of the preview of a draft."""
    return f"{destination.url('paste')}?{urlencode({DRAFT_PARAMETER: draft.pk.hex})}"


@dataclass(frozen=True)
class AddedServer:
    """An added server: `review` has its definitions, None as long as it wasn't discovered."""

    server: Server
    review: NewDefinitions | None

    @property
    def state(self) -> str:
        """Return `disabled`, `attention`, `connecting`, or `connected`."""
        if not self.server.enabled:
            return "disabled"
        if self.server.status_code:
            return "attention"
        return "connecting" if self.review is None else "connected"

    @property
    def is_installing(self) -> bool:
        """Return whether its package is being installed."""
        return self.server.status_code == INSTALLING

    @property
    def tool_count(self) -> int | None:
        """Return the number of definitions to review, None before they are known."""
        if self.review is None:
            return None
        return len(self.review.clean_rows) + len(self.review.other_rows) + self.review.hidden_count


def _strip_names(server: Server) -> str:
    """Return the error of a server without its name, which each has its own."""
    return str(server.status_detail).replace(f"`{server.name}`", "")


def group_rows(rows: Iterable[AddedServer]) -> list[list[AddedServer]]:
    """Return the servers that need attention by status and code, in the order of the first ones.

    A crash has its own reason, so these servers are one group only with the same output.
    """
    groups: dict[tuple[str, str, str], list[AddedServer]] = {}
    for row in rows:
        server = row.server
        reason = "" if server.status_code in GROUPED_CODES else _strip_names(server)
        groups.setdefault((server.status, server.status_code, reason), []).append(row)
    return list(groups.values())


def _name_groups(rows: Iterable[AddedServer]) -> list[tuple[list[AddedServer], str]]:
    return [
        (group, join_names((row.server.name for row in group), MAX_NAMES))
        for group in group_rows(rows)
    ]


def show_added_servers(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Connect added servers and show their definitions, or approve the selected ones.

    Servers that have been discovered aren't contacted again, so the page can be reloaded.
    """
    principal.require(destination.required_action)
    servers = _load_servers(principal, request.GET.get("servers", ""))
    if request.method == "POST":
        _approve_selected(request, principal, servers)
        failures_key = request.GET.get("failures", "")
        is_finished = not failures_key and all(_is_ready(server) for server in servers)
        return HttpResponseRedirect(
            str(destination.onward)
            if destination.onward and is_finished
            else build_added_url(destination, servers, failures_key)
        )
    added_rows = [
        AddedServer(server, load_new_definitions(server) if server.discovered_at else None)
        for server in servers
    ]
    reviews = [row.review for row in added_rows if row.review]
    rows_by_state = {
        state: [row for row in added_rows if row.state == state]
        for state in ("attention", "connecting", "connected", "disabled")
    }
    results = _load_results(request, principal)
    paste_url = destination.url("paste")
    may_approve = principal.may(Action.APPROVE_DEFINITIONS)
    unknown_count = len(rows_by_state["connecting"])
    return destination.render_page(
        request,
        "",
        "review_new_servers/page.html",
        rows=rows_by_state,
        attention_groups=_name_groups(rows_by_state["attention"]),
        failure_groups=group_failures(results.failures),
        existing_names=results.existing_names,
        skipped_names=results.skipped_names,
        remaining_count=results.remaining_count,
        paste_url=paste_url,
        add_url=destination.url("presets"),
        again_url=build_draft_url(destination, results.draft) if results.draft else paste_url,
        summary=_summarize(rows_by_state, results),
        attention_count=len(rows_by_state["attention"]) + len(results.failures),
        selected=sum(review.selected_count for review in reviews),
        unknown=unknown_count,
        may_approve=may_approve,
        is_pending=may_approve
        and bool(unknown_count or any(review.clean_rows for review in reviews)),
    )


def _summarize(rows: Mapping[str, Sequence[AddedServer]], results: ImportResults) -> str:
    """Return what became of the servers, such as "2 servers added. 1 couldn't connect."

    The sentences after the first are about some of the added servers, then about those of the
    pasted text that weren't added.
    """
    added = sum(len(state_rows) for state_rows in rows.values())
    if not added:
        sentences = [_t("No servers added.")]
    else:
        text = ngettext("%(n)s server added.", "%(n)s servers added.", added)
        sentences = [text % {"n": added}, *_describe_states(rows, is_only=added == 1)]
    if added and (failed := len(results.failures)):
        text = ngettext("%(n)s wasn't added.", "%(n)s weren't added.", failed)
        sentences.append(text % {"n": failed})
    if existing := len(results.existing_names):
        text = ngettext("%(n)s exists already.", "%(n)s exist already.", existing)
        sentences.append(text % {"n": existing})
    if skipped := len(results.skipped_names):
        text = ngettext("%(n)s wasn't selected.", "%(n)s weren't selected.", skipped)
        sentences.append(text % {"n": skipped})
    return " ".join(sentences)


def _describe_states(rows: Mapping[str, Sequence[AddedServer]], *, is_only: bool) -> Iterator[str]:
    """Yield a sentence for each state of added servers but connected; `is_only` for one server."""
    installing = sum(row.is_installing for row in rows["attention"])
    if connecting := len(rows["connecting"]):
        text = ngettext("%(n)s is connecting.", "%(n)s are connecting.", connecting)
        yield _t("It is connecting.") if is_only else text % {"n": connecting}
    if installing:
        text = ngettext("%(n)s is being installed.", "%(n)s are being installed.", installing)
        yield _t("It is being installed.") if is_only else text % {"n": installing}
    if failed := len(rows["attention"]) - installing:
        text = ngettext("%(n)s couldn't connect.", "%(n)s couldn't connect.", failed)
        yield _t("It couldn't connect.") if is_only else text % {"n": failed}
    if disabled := len(rows["disabled"]):
        text = ngettext("%(n)s is disabled.", "%(n)s are disabled.", disabled)
        yield _t("It is disabled.") if is_only else text % {"n": disabled}


def _is_ready(server: Server) -> bool:
    """Return whether a server is connected and none of its definitions is pending review."""
    return (
        server.discovered_at is not None
        and not server.status_code
        and not server.definitions.awaiting_review().exists()
    )


def _load_servers(principal: Principal, text: str) -> list[Server]:
    try:
        ids = [UUID(hex=part) for part in text.split(SEPARATOR) if part]
    except ValueError:
        raise InvalidInput("This isn't a list of server IDs.", field="servers") from None
    rows = Server.objects.for_organization(principal.organization_id).filter(pk__in=ids)
    by_id = {server.pk: server for server in rows}
    return [by_id[pk] for pk in ids if pk in by_id]


def _approve_selected(request: HttpRequest, principal: Principal, servers: list[Server]) -> None:
    """Approve the posted definitions with the digests that the page showed."""
    digests = parse_shown_digests(request.POST.getlist("seen"))
    approved, skipped_names = 0, list[str]()
    for server in servers:
        rows = server.definitions.values_list("pk", flat=True)
        shown_digests = {pk: digests[pk] for pk in rows if pk in digests}
        if not shown_digests:
            continue
        try:
            result = approve_definitions(principal, server, shown_digests)
        except Conflict:
            skipped_names += [str(row) for row in server.definitions.filter(pk__in=shown_digests)]
        else:
            approved += len(result.approved)
            skipped_names += result.skipped
    _add_messages(request, approved, skipped_names)


def _add_messages(request: HttpRequest, approved: int, skipped_names: list[str]) -> None:
    if approved:
        messages.success(request, describe_approved_count(approved))
    if skipped_names:
        text = _t(
            "Not approved because they changed or are rejected: %(names)s. Review them again."
        )
        messages.warning(request, text % {"names": ", ".join(skipped_names[:10])})
