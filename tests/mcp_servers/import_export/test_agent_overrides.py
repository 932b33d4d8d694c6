"""Overrides in a file: selected tools, and the servers of each bot."""

import json

import pytest

from mcp_servers.import_export.agent_overrides import AgentServerOverride, parse_overrides

SERVERS = {"files": {"command": "npx", "allowed_tools": ["read_*"]}, "web": {"url": "https://a.io"}}


def parse_bots(bots):
    return parse_overrides(json.dumps({"servers": SERVERS, "bot_overrides": bots}, indent=2))


def test_bot_overrides_add_servers_and_permit_tools():
    permissions = {"web": {"allowed": ["search"], "denied": ["buy"]}}
    result = parse_bots({"one": {"additional_servers": ["files"], "tool_permissions": permissions}})
    (override,) = result.overrides
    files, web = override.server_overrides
    assert override.agent == "one"
    assert (files.server, files.allowed, files.denied) == ("files", ("read_*",), ())
    assert (web.server, web.allowed, web.denied) == ("web", ("search",), ("buy",))
    assert web.line > override.line > 1
    assert result.only_tools == {"files": ("read_*",)}


def test_removed_servers_are_reported():
    (override,) = parse_bots({"one": {"removed_servers": ["web"]}}).overrides
    assert override.server_overrides == (AgentServerOverride("web", override.line, removed=True),)


def test_without_overrides_nothing_changes():
    result = parse_overrides('{"web": {"url": "https://a.io"}}')
    assert (result.overrides, result.problems, result.only_tools) == ((), (), {})


@pytest.mark.parametrize(
    ("bots", "field"),
    [
        (7, "bot_overrides"),
        ({"one": []}, "bot_overrides.one"),
        ({"one": {"additional_servers": "web"}}, "bot_overrides.one.additional_servers"),
        ({"one": {"removed_servers": [1]}}, "bot_overrides.one.removed_servers"),
        ({"one": {"tool_permissions": ["web"]}}, "bot_overrides.one.tool_permissions"),
        (
            {"one": {"tool_permissions": {"web": {"denied": "buy"}}}},
            "bot_overrides.one.tool_permissions.web.denied",
        ),
        ({"one": {"additional_servers": ["web"], "removed_servers": ["web"]}}, "bot_overrides.one"),
    ],
)
def test_invalid_overrides_are_reported_with_field_and_line(bots, field):
    problem = parse_bots(bots).problems[0]
    assert (problem.code, problem.field) == ("bad_value", field)
    assert problem.extra["line"] > 1
    assert problem.remedy


def test_unknown_fields_are_reported():
    (notice,) = parse_bots({"one": {"color": "red"}}).notices
    assert (notice.code, notice.field) == ("left_out", "bot_overrides.one")
