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


class LabelSource(StrEnum):
    """The source of a label in effect, the first one that applies."""

    PERSON = "person"
    PRESET = "preset"
    OPERATION = "operation"  # of a REST API, by its method or its declaration
    SUGGESTION = "suggestion"
    DEFAULT = "default"  # a preset or a suggestion
    BUILTIN = "builtin"  # a built-in tool has it


SOURCE_TEXTS: Mapping[LabelSource, Any] = {
    LabelSource.PERSON: _("set by a person in your organization"),
    LabelSource.PRESET: _("from the preset of the server"),
    LabelSource.OPERATION: _("from the operation of the REST API"),
    LabelSource.SUGGESTION: _("suggested from the name, description, and arguments"),
    LabelSource.DEFAULT: _("from the server's preset, or suggested from the definition"),
    LabelSource.BUILTIN: _("defined by Bonobot"),
}


def find_label_sources(row: Definition, context: LabelContext) -> dict[FlowLabel, LabelSource]:
    """Return the source of each label in effect for a definition."""
    return {
        label: _find_source(label, row, context) for label in get_effective_labels(row, context)
    }


def _find_source(label: FlowLabel, row: Definition, context: LabelContext) -> LabelSource:
    if row.labels is not None:
        return LabelSource.PERSON
    if context.is_declared and find_declared_labels(row.payload) is not None:
        return LabelSource.OPERATION
    preset_labels = dict(context.preset_labels)
    if label in preset_labels.get(row.name, ()):
        return LabelSource.PRESET
    if context.transport == "openapi":
        return LabelSource.OPERATION
    # Those of a whole server are of the data that its tools read.
    if label in READ_DATA_LABELS and label in preset_labels.get("*", ()):
        return LabelSource.PRESET
    return LabelSource.SUGGESTION
