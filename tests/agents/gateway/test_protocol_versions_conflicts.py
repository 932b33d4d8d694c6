"""Requests whose header and body name different protocol versions are rejected (-32020)."""

import json
from typing import Any

import pytest

from agents.gateway.protocol_versions import find_version_conflict

MODERN, EARLIER = "2026-07-28", "2025-11-25"
VERSION = "io.modelcontextprotocol/protocolVersion"


def find(versions: list[str], **message: Any) -> dict[str, Any] | None:
    headers = [(b"mcp-protocol-version", version.encode()) for version in versions]
    return find_version_conflict(headers, json.dumps({"id": 7, **message}).encode())


def modern(version: str = MODERN) -> dict[str, Any]:
    return {"method": "tools/list", "params": {"_meta": {VERSION: version}}}


@pytest.mark.parametrize("versions", [[], [EARLIER], ["2025-03-26"]])
def test_a_modern_request_needs_the_modern_header(versions: list[str]) -> None:
    conflict = find(versions, **modern())
    assert conflict is not None
    assert (conflict["id"], conflict["error"]["code"]) == (7, -32020)
    assert MODERN in conflict["error"]["message"]


@pytest.mark.parametrize("order", [[MODERN, EARLIER], [EARLIER, MODERN]])
def test_repeated_headers_must_agree(order: list[str]) -> None:
    conflict = find(order, method="ping")
    assert conflict is not None
    assert conflict["error"]["code"] == -32020


def test_a_handshake_cannot_have_the_modern_header() -> None:
    initialize = {"method": "initialize", "params": {"protocolVersion": EARLIER}}
    assert (find([MODERN], **initialize) or {})["error"]["code"] == -32020
    assert find([], **initialize) is None
    assert find([EARLIER], **initialize) is None


def test_requests_that_agree_pass() -> None:
    assert find([MODERN], **modern()) is None
    assert find([EARLIER], method="tools/list", params={"_meta": {"progressToken": 1}}) is None
    assert find([EARLIER, EARLIER], method="ping") is None
    text = {"name": "echo", "arguments": {"text": "protocolVersion _meta"}}
    assert find([EARLIER], method="tools/call", params=text) is None
    assert find_version_conflict([], b'[{"_meta": "protocolVersion"') is None
