"""Labels as columns, and the risk of a tool."""

import pytest

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.label_icons import ALL_MARKS, list_label_marks
from mcp_servers.flow_labels.suggested_labels import LabelContext, infer_labels
from mcp_servers.flow_labels.tool_risk import ToolRisk, find_tool_risk


def test_every_tool_has_the_same_columns_in_the_same_order() -> None:
    none, some = (
        list_label_marks([], None),
        list_label_marks(
            [FlowLabel.PRIVATE_DATA, FlowLabel.REPEATABLE], {"annotations": {"readOnlyHint": True}}
        ),
    )
    keys = [mark.key for mark in ALL_MARKS]
    assert [mark.key for mark in none] == [mark.key for mark in some] == keys
    assert not any(mark.present for mark in none)
    present = [mark.key for mark in some if mark.present]
    assert present == ["read_only", "repeatable", "private_data"]


@pytest.mark.parametrize("annotations", [None, [], "readOnlyHint", {"readOnlyHint": "yes"}])
def test_annotations_of_another_form_are_ignored(annotations: object) -> None:
    marks = list_label_marks([], {"annotations": annotations})
    assert not any(mark.present for mark in marks)
    assert find_tool_risk([], {"annotations": annotations}) == ToolRisk.OTHER


@pytest.mark.parametrize(
    ("labels", "hints", "risk"),
    [
        ([FlowLabel.SENDS_OUT], {"destructiveHint": True}, ToolRisk.DESTRUCTIVE),
        ([FlowLabel.SENDS_OUT], {"readOnlyHint": True}, ToolRisk.EXTERNAL),
        ([FlowLabel.PRIVATE_DATA], {"readOnlyHint": True}, ToolRisk.READ_ONLY),
        ([FlowLabel.PRIVATE_DATA], {}, ToolRisk.OTHER),
    ],
)
def test_the_riskiest_property_decides_the_group(
    labels: list[FlowLabel], hints: dict[str, bool], risk: ToolRisk
) -> None:
    assert find_tool_risk(labels, {"annotations": hints}) == risk


@pytest.mark.parametrize(
    ("name", "hints", "expected"),
    [
        ("delete_order", {}, True),
        ("dcim_site_delete", {}, True),
        ("purgeCache", {"openWorldHint": True}, True),
        ("list_deleted_orders", {}, False),
        ("get_delete_marker", {}, False),
        ("create_order", {}, False),
        ("delete_draft", {"destructiveHint": False}, False),
        ("remove_stopwords", {"readOnlyHint": True}, False),
        ("create_order", {"destructiveHint": True}, True),
    ],
)
def test_a_tool_is_destructive_by_its_annotations_or_else_by_the_verb_in_its_name(
    name: str, hints: dict[str, bool], expected: bool
) -> None:
    declaration = {"name": name, "annotations": hints}
    assert (find_tool_risk([], declaration) == ToolRisk.DESTRUCTIVE) is expected
    mark = next(mark for mark in list_label_marks([], declaration) if mark.key == "destructive")
    assert mark.present is expected


def test_a_refund_has_an_external_effect_wherever_its_server_runs() -> None:
    refund = {"name": "refund", "description": "Refunds an amount."}
    assert FlowLabel.SENDS_OUT in infer_labels("tool", refund, LabelContext("stdio"))
