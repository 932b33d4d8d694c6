"""Why a definition has a label: who or what set it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext_lazy as _

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import get_effective_labels
from mcp_servers.flow_labels.suggested_labels import READ_DATA_LABELS, LabelContext
from mcp_servers.models import Definition
from mcp_servers.openapi.operations import find_declared_labels


class LabelReason(StrEnum):
    """The reason for a label in effect: its source, the first one that applies."""

    PERSON = "person"
    PRESET = "preset"
    OPERATION = "operation"  # of a REST API, by its method or its declaration
    SUGGESTION = "suggestion"
    DEFAULT = "default"  # a preset or a suggestion
    BUILTIN = "builtin"  # a built-in tool has it


REASON_TEXTS: Mapping[LabelReason, Any] = {
    LabelReason.PERSON: _("set by a person in your organization"),
    LabelReason.PRESET: _("from the preset of the server"),
    LabelReason.OPERATION: _("from the operation of the REST API"),
    LabelReason.SUGGESTION: _("suggested from the name, description, and arguments"),
    LabelReason.DEFAULT: _("from the server's preset, or suggested from the definition"),
    LabelReason.BUILTIN: _("defined by Bonobot"),
}


def find_label_reasons(row: Definition, context: LabelContext) -> dict[FlowLabel, LabelReason]:
    """Return the reason for each label in effect for a definition."""
    return {
        label: _find_reason(label, row, context) for label in get_effective_labels(row, context)
    }


def _find_reason(label: FlowLabel, row: Definition, context: LabelContext) -> LabelReason:
    if row.labels is not None:
        return LabelReason.PERSON
    if context.is_declared and find_declared_labels(row.payload) is not None:
        return LabelReason.OPERATION
    preset_labels = dict(context.preset_labels)
    if label in preset_labels.get(row.name, ()):
        return LabelReason.PRESET
    if context.transport == "openapi":
        return LabelReason.OPERATION
    # Those of a whole server are of the data that its tools read.
    if label in READ_DATA_LABELS and label in preset_labels.get("*", ()):
        return LabelReason.PRESET
    return LabelReason.SUGGESTION
