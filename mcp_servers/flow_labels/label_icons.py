"""The labels of a tool as fixed columns, so that a column can be scanned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.label_reasons import REASON_TEXTS, LabelReason
from mcp_servers.flow_labels.tool_risk import is_destructive, list_declared_hints

COLUMNS = (
    "readOnlyHint",
    FlowLabel.REPEATABLE,
    "destructiveHint",
    FlowLabel.SENDS_OUT,
    FlowLabel.UNTRUSTED_CONTENT,
    FlowLabel.PRIVATE_DATA,
)


@dataclass(frozen=True, slots=True)
class LabelMark:
    """One label: `key` for filters, an icon, its word and tone, and whether the tool has it.

    `reason` says why the tool has it, if that is known.
    """

    key: str
    icon: str
    title: Any
    tone: str
    present: bool = True
    reason: Any = ""

    @property
    def tooltip(self) -> str:
        """The title, with the reason."""
        return f"{self.title}: {self.reason}" if self.reason else str(self.title)


# They are shown only; decisions use flow labels.
HINT_MARKS: dict[str, LabelMark] = {
    "readOnlyHint": LabelMark("read_only", "visibility", _("Read-only"), "plain"),
    "destructiveHint": LabelMark("destructive", "delete", _("Destructive"), "bad"),
}
FLOW_MARKS: dict[str, LabelMark] = {
    FlowLabel.REPEATABLE: LabelMark("repeatable", "repeat", _("Idempotent"), "plain"),
    FlowLabel.SENDS_OUT: LabelMark("sends_out", "north_east", _("External effect"), "warn"),
    FlowLabel.UNTRUSTED_CONTENT: LabelMark(
        "untrusted_content", "gpp_maybe", _("Untrusted content"), "trust"
    ),
    FlowLabel.PRIVATE_DATA: LabelMark("private_data", "lock", _("Private data"), "busy"),
}
_MARKS: Mapping[str, LabelMark] = HINT_MARKS | {
    str(label): mark for label, mark in FLOW_MARKS.items()
}
ALL_MARKS = tuple(_MARKS[column] for column in COLUMNS)
DECLARED = _("declared by the server")
FROM_NAME = _("suggested from the name")


def list_label_marks(
    labels: Collection[str],
    declaration: Mapping[str, Any] | None = None,
    sources: Mapping[Any, LabelReason] | None = None,
) -> tuple[LabelMark, ...]:
    """Return the six marks of a tool, in the order of the columns.

    `declaration` is the tool's as its server sent it, so its annotations can be anything.
    `sources` are those of the labels, if they are known.
    """
    hints: dict[str, Any] = dict.fromkeys(list_declared_hints(declaration or {}), DECLARED)
    if is_destructive(declaration or {}):
        hints.setdefault("destructiveHint", FROM_NAME)
    reasons = hints | {label: REASON_TEXTS[source] for label, source in (sources or {}).items()}
    shown = {*labels, *hints}
    return tuple(
        LabelMark(
            mark.key,
            mark.icon,
            mark.title,
            mark.tone,
            present=column in shown,
            reason=reasons.get(column, ""),
        )
        for column, mark in zip(COLUMNS, ALL_MARKS, strict=True)
    )
