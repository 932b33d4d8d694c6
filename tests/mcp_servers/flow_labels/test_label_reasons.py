"""Why a definition has a label."""

import pytest

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.label_icons import list_label_marks
from mcp_servers.flow_labels.label_reasons import LabelReason, find_label_reasons
from mcp_servers.flow_labels.suggested_labels import LabelContext, build_label_context
from mcp_servers.models import Definition

SENDING = {
    "name": "send_mail",
    "description": "Send a mail.",
    "annotations": {"readOnlyHint": True},
}


def build_tool(**fields: object) -> Definition:
    values = {"kind": "tool", "name": "send_mail", "digest": "1", "payload": SENDING}
    return Definition(**values | fields)


@pytest.mark.parametrize(
    ("labels", "context", "source"),
    [
        (["sends_out"], LabelContext(), LabelReason.PERSON),
        (["sends_out"], build_label_context("http", {"send_mail": ["sends_out"]}), "person"),
        (None, build_label_context("http", {"send_mail": ["sends_out"]}), LabelReason.PRESET),
        (None, build_label_context("http", ["private_data"]), LabelReason.SUGGESTION),
        (None, LabelContext(), LabelReason.SUGGESTION),
        (None, LabelContext("openapi"), LabelReason.OPERATION),
    ],
    ids=["a person", "a person and a preset", "a preset", "server", "suggested", "operation"],
)
def test_an_external_effect_has_the_first_source_that_applies(
    labels: list[str] | None, context: LabelContext, source: str
) -> None:
    payload = {"name": "send_mail", "description": "Send a mail to a person."}
    row = build_tool(labels=labels, payload=payload)
    assert find_label_reasons(row, context)[FlowLabel.SENDS_OUT] == source


def test_labels_of_read_data_are_from_the_preset_of_the_whole_server() -> None:
    context = build_label_context("http", ["private_data", "sends_out"])
    sources = find_label_reasons(build_tool(), context)
    assert sources[FlowLabel.PRIVATE_DATA] == LabelReason.PRESET
    assert sources[FlowLabel.SENDS_OUT] == LabelReason.SUGGESTION


def test_the_tooltip_of_a_mark_says_why_the_tool_has_it() -> None:
    sources = {FlowLabel.SENDS_OUT: LabelReason.SUGGESTION}
    marks = list_label_marks([FlowLabel.SENDS_OUT], SENDING, sources)
    assert [mark.tooltip for mark in marks if mark.present] == [
        "Read-only: declared by the server",
        "External effect: suggested from the name, description, and arguments",
    ]
    [mark] = [mark for mark in list_label_marks([FlowLabel.SENDS_OUT]) if mark.present]
    assert mark.tooltip == "External effect"
