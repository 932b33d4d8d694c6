"""Pages to review, label, enable and disable a server's definitions.

An approval carries the digests that the page showed; definitions that changed since are skipped.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base import (
    ObjectRequest,
    redirect_back,
    redirect_to_page,
    render_fragment,
)
from bonobot.accounts.roles import Action
from bonobot.core.i18n.localization import format_number
from bonobot.core.problems import InvalidInput
from mcp_servers.admin.definition_rows import (
    TOOLS_FIRST,
    DefinitionRow,
    build_definition_row,
    describe_approved_count,
    parse_definition_id,
    parse_shown_digests,
)
from mcp_servers.admin.listed_definitions import ListedDefinitions
from mcp_servers.admin.servers import KINDS_OF_PAGES, ServerAdmin
from mcp_servers.definition_reviews import (
    approve_definitions,
    reject_definition,
    reset_review,
    set_definition_enabled,
)
from mcp_servers.flow_labels.effective_labels import (
    LABEL_NAMES,
    get_effective_labels,
    load_label_context,
    set_labels,
)
from mcp_servers.flow_labels.label_icons import (
    ALL_MARKS,
)
from mcp_servers.flow_labels.suggested_labels import LabelContext
from mcp_servers.flow_labels.tool_risk import ToolRisk, find_tool_risk, is_declared_read_only
from mcp_servers.models import Definition, Server
from mcp_servers.models.definitions import AWAITING_REVIEW, DefinitionQuerySet

PAGE_SIZE = 50
TOOLS, RESOURCES, PROMPTS = KINDS_OF_PAGES.values()
# Kind filters of each tab: (query value, title, kinds).
NONE_DECLARED = {
    "tools": _("This server declares no tools."),
    "resources": _("This server declares no resources."),
    "prompts": _("This server declares no prompts."),
}
KIND_FILTERS = {
    "resources": (
        ("fixed", _("Resources"), RESOURCES[:1]),
        ("templates", _("Templates"), RESOURCES[1:2]),
        ("skills", _("Skills"), RESOURCES[2:]),
    ),
    "prompts": (
        ("prompts", _("Prompts"), PROMPTS[:1]),
        ("instructions", _("Instructions"), PROMPTS[1:]),
    ),
    "definitions": (
        ("tools", _("Tools"), TOOLS),
        ("resources", _("Resources"), RESOURCES),
        ("prompts", _("Prompts"), PROMPTS[:1]),
        ("instructions", _("Instructions"), PROMPTS[1:]),
    ),
}
STATES = (
    ("", _("All states")),
    ("waiting", _("pending review")),
    ("callable", _("approved")),
    ("off", _("disabled")),
    ("rejected", _("rejected")),
    ("refused", _("can't be used")),
    ("gone", _("no longer declared")),
)
# The groups of tools; a server with more tools than `MAX_GROUPED` has them by name.
MAX_GROUPED = 1_000
REVIEW_GROUP, OTHER_GROUP = "review", "definitions"
# Group, icon, tone and title: definitions to review, tools by risk, all others.
GROUPS = (
    (REVIEW_GROUP, "fact_check", "trust", _("To review")),
    (ToolRisk.DESTRUCTIVE, "delete", "bad", _("Destructive")),
    (ToolRisk.EXTERNAL, "north_east", "warn", _("External effect")),
    (ToolRisk.OTHER, "edit", "plain", _("Other")),
    (ToolRisk.READ_ONLY, "visibility", "good", _("Read-only")),
    (OTHER_GROUP, "description", "plain", _("Resources and prompts")),
)


@dataclass(frozen=True)
class DefinitionGroup:
    """Definitions under one heading; `total` counts those of all pages."""

    key: str
    icon: str
    tone: str
    title: Any
    items: list[DefinitionRow]
    total: int

    @property
    def first_read_only(self) -> DefinitionRow | None:
        """The first tool with an external effect whose server declares it read-only."""
        if self.key != ToolRisk.EXTERNAL:
            return None
        return next((item for item in self.items if item.has_unused_declaration), None)


@ServerAdmin.add_page("tools", _("Tools"), order=20)
def show_tools(visit: ObjectRequest) -> HttpResponseBase:
    """Show the tools."""
    return _render_definitions(visit, TOOLS)


@ServerAdmin.add_page("resources", _("Resources"), order=21)
def show_resources(visit: ObjectRequest) -> HttpResponseBase:
    return _render_definitions(visit, RESOURCES)


@ServerAdmin.add_page("prompts", _("Prompts"), order=22)
def show_prompts(visit: ObjectRequest) -> HttpResponseBase:
    """Show the prompts and the server's instructions."""
    return _render_definitions(visit, PROMPTS)


@ServerAdmin.add_page("definitions", parent_tab="tools")
def show_definitions(visit: ObjectRequest) -> HttpResponseBase:
    return _render_definitions(visit, tuple(Definition.Kind))


def _render_definitions(visit: ObjectRequest, kinds: tuple[str, ...]) -> HttpResponseBase:
    """Show a server's definitions of these kinds, or apply the posted action."""
    if visit.request.method == "POST":
        _apply_action(visit)
        if visit.request.POST.get("then") == "change":
            return redirect_to_page(visit, "change")
        return redirect_back(visit.request, visit.url(visit.page))
    server: Server = visit.object
    query = visit.request.GET
    kind, state, text = query.get("kind", ""), query.get("state", ""), query.get("q", "").strip()
    kinds = select_kinds(visit.page, kind, kinds)
    kind_filters = KIND_FILTERS.get(visit.page, ())
    label_context = load_label_context(server)
    listed_definitions = ListedDefinitions(kinds, state, text)
    definitions: Any = listed_definitions.apply(server.definitions.all())
    definitions = definitions.order_by(TOOLS_FIRST, "kind", "name")
    groups_by_id = _group_definitions(definitions, label_context)
    ids: Any = list(groups_by_id) or definitions.values_list("pk", flat=True)
    page = Paginator(ids, PAGE_SIZE).get_page(query.get("page"))
    rows = definitions.in_bulk(list(page))
    items = [build_definition_row(rows[pk], label_context) for pk in page]
    return visit.render_tab(
        "definitions/list.html",
        server=server,
        items=items,
        groups=_build_groups(items, groups_by_id),
        legend=ALL_MARKS if Definition.Kind.TOOL in kinds else (),
        paged=page,
        parts=[("", _("All"), ()), *kind_filters] if kind_filters else [],
        states=STATES,
        label_words=list(LABEL_NAMES.items()),
        kind=kind,
        state=state,
        q=text,
        review_query=listed_definitions.query,
        approvable_items=[item for item in items if item.is_selectable],
        safe_items=[item for item in items if item.is_preselected and item.is_tool],
        tools_only=kinds == TOOLS,
        none_declared=NONE_DECLARED.get(visit.page, _("This server declares no definitions.")),
        pending=_count_pending(definitions),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
    )


def select_kinds(page: str, kind: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of a page's filter, or all `kinds` of the page without one."""
    filters = KIND_FILTERS.get(page, ())
    return next((filter_kinds for slug, _title, filter_kinds in filters if slug == kind), kinds)


def _count_pending(definitions: DefinitionQuerySet) -> dict[str, int]:
    """Return how many of the filtered definitions are pending review, on all pages."""
    return definitions.order_by().aggregate(
        total=Count("pk", filter=AWAITING_REVIEW),
        changed=Count("pk", filter=AWAITING_REVIEW & ~Q(pinned_digest="")),
        flagged=Count("pk", filter=AWAITING_REVIEW & ~Q(findings=[])),
    )


def _group_definitions(definitions: Any, label_context: LabelContext) -> dict[UUID, str]:
    """Return the group of each definition by id, in the order of the page.

    Definitions to review come first, then tools by risk, then all others. Tools with an external
    effect that the server declares read-only are the last of their group. Empty for a server with
    more than `MAX_GROUPED`, which has them by name.
    """
    rows = list(definitions.only_call_fields()[: MAX_GROUPED + 1])
    if len(rows) > MAX_GROUPED:
        return {}
    order = [group for group, *_heading in GROUPS]
    keys = [(row, _find_group(row, label_context)) for row in rows]
    keys.sort(key=lambda entry: (order.index(entry[1]), _is_read_only_external(*entry)))
    return {row.pk: group for row, group in keys}


def _is_read_only_external(row: Definition, group: str) -> bool:
    return group == ToolRisk.EXTERNAL and is_declared_read_only(row.payload)


def _find_group(row: Definition, label_context: LabelContext) -> str:
    if row.state in (Definition.State.PENDING, Definition.State.CHANGED):
        return REVIEW_GROUP
    if row.kind != Definition.Kind.TOOL:
        return OTHER_GROUP
    return find_tool_risk(get_effective_labels(row, label_context), row.payload)


def _build_groups(
    items: list[DefinitionRow], groups_by_id: dict[UUID, str]
) -> list[DefinitionGroup]:
    """Return the groups of a page, in order; definitions to review are the first."""
    if not groups_by_id:
        return (
            [
                DefinitionGroup(
                    OTHER_GROUP, icon="", tone="plain", title="", items=items, total=len(items)
                )
            ]
            if items
            else []
        )
    totals = Counter(groups_by_id.values())
    groups = (
        DefinitionGroup(
            *heading,
            items=[item for item in items if groups_by_id[item.row.pk] == heading[0]],
            total=totals[heading[0]],
        )
        for heading in GROUPS
    )
    return [group for group in groups if group.items]


def _apply_action(visit: ObjectRequest) -> None:
    posted = visit.request.POST
    if "only" in posted:
        _approve_definitions(visit, [posted["only"]])
    elif "shown" in posted.get("do", ""):
        _approve_definitions(visit, posted.getlist("shown"))
    elif posted.get("do") == "selected":
        _approve_definitions(visit, posted.getlist("seen"))
    elif "label" in posted:
        _set_definition_labels(
            visit, [posted["label"]], posted.getlist(f"flow_labels-{posted['label']}")
        )
    elif "unlabel" in posted:
        _set_definition_labels(visit, [posted["unlabel"]], None)
    elif posted.get("do") == "label":
        definition_ids = [entry.partition(":")[0] for entry in posted.getlist("labelled")]
        _set_definition_labels(visit, definition_ids, posted.getlist("flow_labels"))
    elif "reject" in posted:
        _reject_definition(visit, posted["reject"])
    elif "withdraw" in posted:
        row = _get_definition(visit.object, posted["withdraw"])
        reset_review(visit.principal, row)
        _add_success_message(visit.request, _t("The approval of %(name)s was revoked."), name=row)
    elif "off" in posted or "on" in posted:
        row = _get_definition(visit.object, posted.get("off") or posted["on"])
        set_definition_enabled(visit.principal, row, enabled="on" in posted)
        text = _t("%(name)s is enabled.") if "on" in posted else _t("%(name)s is disabled.")
        _add_success_message(visit.request, text, name=row)


def _approve_definitions(visit: ObjectRequest, entries: list[str]) -> None:
    """Approve the chosen definitions with the digests that the page showed."""
    digests = parse_shown_digests(entries)
    result = approve_definitions(visit.principal, visit.object, digests)
    messages.success(visit.request, describe_approved_count(len(result.approved)))
    if result.skipped:
        names = ", ".join(result.skipped[:10])
        text = _t(
            "Not approved because they changed or are rejected: %(names)s. Review them again."
        )
        messages.warning(visit.request, text % {"names": names})


def _reject_definition(visit: ObjectRequest, entry: str) -> None:
    """Reject a definition with the digest that the page showed."""
    definition_id, _colon, digest = entry.partition(":")
    row = _get_definition(visit.object, definition_id)
    reason = visit.request.POST.get(f"reason-{row.pk}", "")
    reject_definition(visit.principal, row, digest, reason)
    _add_success_message(visit.request, _t("%(name)s was rejected."), name=row)


def _set_definition_labels(
    visit: ObjectRequest, definition_ids: list[str], labels: list[str] | None
) -> None:
    """Set the flow labels of the chosen definitions; None resets to the suggested ones."""
    if not definition_ids:
        raise InvalidInput(
            "Nothing is selected.", field="labelled", remedy="Select the tools to label."
        )
    parsed_ids = [parse_definition_id(definition_id) for definition_id in definition_ids]
    rows = list(visit.object.definitions.filter(pk__in=parsed_ids))
    set_labels(visit.principal, visit.object, rows, labels)
    count = len(rows)
    _add_success_message(
        visit.request,
        ngettext("%(n)s definition labeled.", "%(n)s definitions labeled.", count),
        n=format_number(count),
    )


def _get_definition(server: Server, pk: str) -> Definition:
    definition: Definition = Definition.objects.filter(server=server).get_or_404(
        server.organization_id, pk=pk
    )
    return definition


def _add_success_message(request: HttpRequest, text: str, **values: Any) -> None:
    messages.success(request, text % values)


@ServerAdmin.add_page("arguments")
def show_arguments(visit: ObjectRequest) -> HttpResponseBase:
    if not (definition_id := visit.request.GET.get("of")):
        return redirect_to_page(visit, "definitions")
    row = visit.object.definitions.get_or_404(visit.principal.organization_id, pk=definition_id)
    return render_fragment(
        visit.request,
        "definitions/schema.html",
        rows=build_definition_row(row, LabelContext()).input,
    )
