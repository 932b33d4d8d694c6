"""Suggested labels measured on tools of real servers that were labeled by hand."""

import sys
from functools import cache

import pytest

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.suggested_labels import build_label_context, infer_labels
from tests.mcp_servers.labeled_tools import Counts, LabeledTool, labeled_tools, sources

HALVES = ("development", "held_out")
LOCAL = build_label_context("stdio")
# Precision and recall, slightly below the last measurement (docs/flow-labels.md).
FLOORS = {
    ("development", FlowLabel.PRIVATE_DATA): (0.88, 0.98),
    ("development", FlowLabel.UNTRUSTED_CONTENT): (0.88, 0.88),
    ("development", FlowLabel.SENDS_OUT): (0.93, 0.98),
    ("development", FlowLabel.REPEATABLE): (0.95, 0.90),
    ("held_out", FlowLabel.PRIVATE_DATA): (0.81, 0.95),
    ("held_out", FlowLabel.UNTRUSTED_CONTENT): (0.76, 0.82),
    ("held_out", FlowLabel.SENDS_OUT): (0.86, 0.94),
    ("held_out", FlowLabel.REPEATABLE): (0.95, 0.97),
}


@cache
def tools() -> tuple[LabeledTool, ...]:
    return tuple(labeled_tools())


def count_labels(half: str, label: FlowLabel) -> Counts:
    counts = Counts()
    for tool in tools():
        if tool.half != half:
            continue
        expected = label in tool.labels
        if label is FlowLabel.REPEATABLE:
            # It is suggested only if the server declares it.
            expected = expected and tool.says_it_only_reads
        counts.count(expected, label in infer_labels("tool", tool.declaration, LOCAL))
    return counts


def test_the_labeled_tools_are_of_many_servers_in_two_halves():
    assert len(tools()) >= 400
    assert len(sources()) >= 15
    for half in HALVES:
        assert sum(tool.half == half for tool in tools()) >= 200
    assert all(tool.labels <= {*FlowLabel} for tool in tools())
    for tool in tools():
        assert not (FlowLabel.REPEATABLE in tool.labels and FlowLabel.SENDS_OUT in tool.labels), (
            tool
        )


def test_suggestions_have_the_documented_precision_and_recall():
    lines = [f"{'half':12} {'label':18} precision  recall  right  extra  missed"]
    below = []
    for (half, label), (precision, recall) in FLOORS.items():
        counts = count_labels(half, label)
        lines.append(
            f"{half:12} {label:18} {counts.precision:9.3f} {counts.recall:7.3f}"
            f" {counts.right:6} {counts.extra:6} {counts.missed:7}"
        )
        if counts.precision < precision or counts.recall < recall:
            below.append((half, str(label), counts))
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert not below


@pytest.mark.parametrize(
    "name",
    [
        *("git_status", "git_diff", "git_diff_staged", "git_diff_unstaged", "git_log", "git_show"),
        *("git_branch", "git_commit", "git_add", "git_reset", "git_create_branch", "git_checkout"),
    ],
)
def test_only_a_push_of_a_local_clone_has_an_external_effect(name):
    named = [tool for tool in tools() if tool.declaration["name"] == name]
    assert named
    for tool in named:
        for transport in ("stdio", "http"):
            assert FlowLabel.SENDS_OUT not in infer_labels(
                "tool", tool.declaration, build_label_context(transport)
            )
    bare = {"name": name, "inputSchema": {"properties": {"repo_path": {"type": "string"}}}}
    assert FlowLabel.SENDS_OUT not in infer_labels("tool", bare, LOCAL)


def test_a_push_of_a_clone_has_an_external_effect():
    [push] = [tool for tool in tools() if tool.declaration["name"] == "git_push"]
    assert FlowLabel.SENDS_OUT in infer_labels("tool", push.declaration, LOCAL)


def test_a_name_with_an_ambiguous_verb_reads_too():
    bare = {"name": "git_branch", "inputSchema": {"type": "object"}}
    assert FlowLabel.PRIVATE_DATA in infer_labels("tool", bare, LOCAL)


def test_an_action_argument_decides_what_a_tool_does():
    actions = {"type": "string", "enum": ["list", "delete"]}
    properties = {"action": actions, "teamId": {"type": "string"}}
    labels = infer_labels(
        "tool", {"name": "rota", "inputSchema": {"properties": properties}}, LOCAL
    )
    assert {*labels} >= {FlowLabel.PRIVATE_DATA, FlowLabel.SENDS_OUT}


def test_a_change_is_external_unless_it_is_known_to_be_local():
    local_tool = {
        "name": "create_file",
        "inputSchema": {"properties": {"path": {"type": "string"}}},
    }
    owner = {"owner": {"type": "string"}, "path": {"type": "string"}}
    remote_tool = {"name": "create_file", "inputSchema": {"properties": owner}}
    assert FlowLabel.SENDS_OUT not in infer_labels("tool", local_tool, LOCAL)
    assert FlowLabel.SENDS_OUT in infer_labels("tool", remote_tool, LOCAL)
    assert FlowLabel.SENDS_OUT in infer_labels("tool", {"name": "delete_thing"}, LOCAL)


def test_the_open_world_hint_counts_only_if_the_text_is_inconclusive():
    hint = {"annotations": {"openWorldHint": True}}
    conclusive = {"name": "list_databases", "description": "List all databases."}
    assert FlowLabel.UNTRUSTED_CONTENT not in infer_labels("tool", conclusive | hint, LOCAL)
    assert FlowLabel.UNTRUSTED_CONTENT in infer_labels(
        "tool", {"name": "get_regions"} | hint, LOCAL
    )


@pytest.mark.parametrize(
    "name",
    ["list_business_accounts", "get_web_app_settings", "get_secret_guide", "get_doc_content"],
)
def test_words_about_the_web_dont_remove_the_private_label(name):
    assert FlowLabel.PRIVATE_DATA in infer_labels("tool", {"name": name}, LOCAL)


def test_only_complete_argument_names_count_as_recipients():
    text = {"type": "string"}
    stages = {"filesToStage": text, "message": text}
    mails = {"toAddresses": text, "message": text}
    tool = {"name": "keep", "description": "Keeps files on disk."}
    assert FlowLabel.SENDS_OUT not in infer_labels(
        "tool", tool | {"inputSchema": {"properties": stages}}, LOCAL
    )
    assert FlowLabel.SENDS_OUT in infer_labels(
        "tool", tool | {"inputSchema": {"properties": mails}}, LOCAL
    )


def test_a_page_by_url_is_untrusted_content():
    properties = {"url": {"type": "string"}}
    page = {"name": "fetch_page", "inputSchema": {"properties": properties}}
    assert infer_labels("tool", page, LOCAL) == (FlowLabel.UNTRUSTED_CONTENT, FlowLabel.SENDS_OUT)
