"""A definition prepared for pages, with what a review has to check in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Case, When
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.core.i18n.localization import format_number
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.admin.definition_diff import FieldDiff, diff_definitions
from mcp_servers.admin.json_schema_table import SchemaRow, build_schema_rows
from mcp_servers.definition_reviews import needs_own_review
from mcp_servers.flow_labels import LABEL_BITS, FlowLabel
from mcp_servers.flow_labels.effective_labels import LABEL_NAMES, suggest_labels
from mcp_servers.flow_labels.label_icons import LabelMark, list_label_marks
from mcp_servers.flow_labels.label_reasons import (
    REASON_TEXTS,
    LabelReason,
    find_label_reasons,
)
from mcp_servers.flow_labels.suggested_labels import LabelContext, Labels, list_missing_labels
from mcp_servers.flow_labels.tool_risk import ToolRisk, find_tool_risk, is_declared_read_only
from mcp_servers.models import Definition

# The tool's own annotations. They are shown only; no decision uses them.
HINTS = (
    ("readOnlyHint", _("hint: read-only"), "plain"),
    ("destructiveHint", _("hint: destructive"), "warn"),
    ("idempotentHint", _("hint: idempotent"), "plain"),
    ("openWorldHint", _("hint: open world"), "plain"),
)
PAYLOAD_FACTS = (
    ("uri", _("URI")),
    ("uriTemplate", _("Template")),
    ("mimeType", _("Type")),
    ("size", _("Bytes")),
    ("audience", _("Audience")),
    ("priority", _("Priority")),
    ("lastModified", _("Last modified")),
)
ADVICE = (
    (ToolRisk.DESTRUCTIVE, _("Check: destructive")),
    (ToolRisk.EXTERNAL, _("Check: external effect")),
    (ToolRisk.OTHER, _("Check what it changes")),
    (ToolRisk.READ_ONLY, _("Read-only")),
)
TOOLS_FIRST = Case(When(kind=Definition.Kind.TOOL, then=0), default=1)


@dataclass(frozen=True)
class DefinitionRow:
    """One definition, prepared for the page.

    `labels` are the effective labels, `wider` are suggestions missing from the labels set by hand.
    """

    row: Definition
    input: list[SchemaRow]
    output: list[SchemaRow]
    hints: list[tuple[Any, str]]
    difference: list[FieldDiff]
    marked: list[tuple[str, bool]]
    labels: Labels
    sources: Mapping[FlowLabel, LabelReason]
    wider: list[Any]
    facts: list[tuple[Any, str]]

    @property
    def label_choices(self) -> list[tuple[FlowLabel, Any, bool]]:
        """All labels with their titles and whether they are effective."""
        return [
            (label, label_name, label in self.labels) for label, label_name in LABEL_NAMES.items()
        ]

    @property
    def label_names(self) -> list[Any]:
        """The titles of the effective labels."""
        return [
            label_name for _label, label_name, is_effective in self.label_choices if is_effective
        ]

    @property
    def labelled(self) -> bool:
        """Whether flow labels apply; instructions are never called."""
        return self.row.kind != Definition.Kind.INSTRUCTIONS

    @property
    def marks(self) -> tuple[LabelMark, ...]:
        """The labels of a tool as columns; empty for other definitions."""
        if not self.is_tool:
            return ()
        return list_label_marks(self.labels, self.row.payload, self.sources)

    @property
    def label_reasons(self) -> list[tuple[Any, Any]]:
        """The effective labels, each with the reason why it applies."""
        return [(LABEL_NAMES[label], REASON_TEXTS[self.sources[label]]) for label in self.labels]

    @property
    def has_unused_declaration(self) -> bool:
        """Whether the server declares the tool read-only, which doesn't remove its label."""
        return is_declared_read_only(self.row.payload) and FlowLabel.SENDS_OUT in self.labels

    @property
    def risk(self) -> ToolRisk:
        return find_tool_risk(self.labels, self.row.payload)

    @property
    def is_tool(self) -> bool:
        return self.row.kind == Definition.Kind.TOOL

    @property
    def is_preselected(self) -> bool:
        """Whether reviews select it: it is new and not risky, and a tool only reads data."""
        return (
            self.is_pending
            and not needs_own_review(self.row)
            and not self.is_risky
            and (self.risk == ToolRisk.READ_ONLY or not self.is_tool)
        )

    @property
    def is_risky(self) -> bool:
        """Whether it is destructive, or has a label that a session keeps, such as private data."""
        return bool(self.risky_labels) or self.risk == ToolRisk.DESTRUCTIVE

    @property
    def risky_labels(self) -> set[FlowLabel]:
        """The effective labels that a session keeps."""
        return LABEL_BITS.keys() & self.labels

    @property
    def advice(self) -> Any:
        """What to check in a review."""
        if self.row.findings:
            return _("Check the description")
        if self.row.pinned_digest:
            return _("Check the change")
        if self.risk == ToolRisk.READ_ONLY and self.is_risky:
            names = [name for label, name in LABEL_NAMES.items() if label in self.risky_labels]
            return format_lazy(_("Check: {names}"), names=", ".join(map(str, names)))
        return dict(ADVICE)[self.risk]

    @property
    def advice_tone(self) -> str:
        if self.is_preselected:
            return "good"
        return "bad" if self.is_flagged or self.risk == ToolRisk.DESTRUCTIVE else "warn"

    @property
    def seen(self) -> str:
        """The id and digest that an approval is bound to."""
        return f"{self.row.pk}:{self.row.digest}"

    @property
    def is_pending(self) -> bool:
        """Whether it is pending review."""
        return self.row.state in (Definition.State.PENDING, Definition.State.CHANGED)

    @property
    def can_approve(self) -> bool:
        """Whether it can be approved: it is pending review, or was rejected in one."""
        return self.is_pending or self.row.state == Definition.State.REJECTED

    @property
    def can_revoke(self) -> bool:
        """Whether its approval is in effect."""
        return self.row.state == Definition.State.APPROVED

    @property
    def can_try(self) -> bool:
        """Whether a call could reach the server: approved, or pending review."""
        return self.can_revoke or self.is_pending

    @property
    def is_selectable(self) -> bool:
        """Whether it can be approved together with others."""
        return self.is_pending and not self.is_flagged

    @property
    def is_flagged(self) -> bool:
        """Whether it is pending review with findings, so it must be approved individually."""
        return self.is_pending and bool(self.row.findings)


def build_definition_row(row: Definition, label_context: LabelContext) -> DefinitionRow:
    suggested_labels = suggest_labels(row, label_context)
    payload = row.payload if isinstance(row.payload, dict) else {}
    annotations = payload.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    # A change that made it unusable is shown, too.
    is_changed = row.pinned is not None and row.pinned_digest != row.digest
    arguments = payload.get("arguments")
    return DefinitionRow(
        row=row,
        input=build_schema_rows(payload.get("inputSchema")) or _build_argument_rows(arguments),
        output=build_schema_rows(payload.get("outputSchema")),
        hints=[(text, tone) for name, text, tone in HINTS if hints.get(name) is True],
        difference=diff_definitions(row.pinned or {}, row.payload) if is_changed else [],
        labels=suggested_labels
        if row.labels is None
        else tuple(FlowLabel(value) for value in row.labels),
        sources=find_label_reasons(row, label_context),
        wider=[LABEL_NAMES[label] for label in list_missing_labels(suggested_labels, row.labels)],
        marked=_split_by_findings(row),
        facts=list(_iterate_facts(payload, hints)),
    )


def _iterate_facts(payload: dict[str, Any], hints: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the title and text of the URI, type, size and annotations."""
    values = {name: payload.get(name) for name in ("uri", "uriTemplate", "mimeType", "size")}
    values |= {name: hints.get(name) for name in ("audience", "priority", "lastModified")}
    for name, title in PAYLOAD_FACTS:
        value = values[name]
        if isinstance(value, list):
            value = ", ".join(map(str, value[:10]))
        if isinstance(value, str | int | float) and value != "":
            yield title, make_visible(str(value), 500)


def _split_by_findings(row: Definition) -> list[tuple[str, bool]]:
    """Split the description into (text, has finding) pieces."""
    spans = sorted(
        (finding.get("start", 0), finding.get("end", 0))
        for finding in row.findings
        if finding.get("path") == "$.description"
    )
    pieces: list[tuple[str, bool]] = []
    position = 0
    for start, end in spans:
        if end <= position:
            continue
        pieces.append((row.description[position:start], False))
        pieces.append((row.description[max(start, position) : end], True))
        position = end
    return [piece for piece in (*pieces, (row.description[position:], False)) if piece[0]]


def _build_argument_rows(arguments: Any) -> list[SchemaRow]:
    entries = (
        [entry for entry in arguments if isinstance(entry, dict)]
        if isinstance(arguments, list)
        else []
    )
    return build_schema_rows(
        {
            "properties": {
                str(entry.get("name", "")): {
                    "type": "string",
                    "description": entry.get("description") or entry.get("title") or "",
                }
                for entry in entries
            },
            "required": [
                str(entry.get("name", "")) for entry in entries if entry.get("required") is True
            ],
        }
    )


def describe_approved_count(count: int) -> str:
    """Return the message after an approval."""
    text = ngettext("%(n)s definition approved.", "%(n)s definitions approved.", count)
    return text % {"n": format_number(count)}


def parse_shown_digests(entries: list[str]) -> dict[UUID, str]:
    """Return the digests by id from posted values of `DefinitionRow.seen`.

    Raises `InvalidInput` without entries.
    """
    if not entries:
        raise InvalidInput(
            "Nothing is selected.", field="seen", remedy="Select the definitions to approve."
        )
    pairs = (entry.partition(":") for entry in entries)
    return {parse_definition_id(pk): digest for pk, _colon, digest in pairs}


def parse_definition_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(
            format_message("{text!r} isn't a definition ID.", text=text), field="seen"
        ) from None
