"""URIs of several servers at one endpoint: each has the server's slug as a prefix."""

from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from agents.gateway.catalog import (
    build_uri_prefix,
    expose_uri,
    may_have_uris,
    rename_app_page,
    rename_resources,
    resolve_uri,
)

DOCS, LIVES = uuid4(), uuid4()
SERVERS = {build_uri_prefix("docs"): DOCS, build_uri_prefix("9_lives"): LIVES}


def add_prefix(uri: str) -> str:
    return f"docs+{uri}"


def test_a_prefix_is_a_valid_start_of_a_scheme() -> None:
    assert build_uri_prefix("docs") == "docs+"
    assert build_uri_prefix("9_lives") == "s9.lives+"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("docs+file:///a+b.txt", (DOCS, "file:///a+b.txt")),
        ("s9.lives+cat://1", (LIVES, "cat://1")),
        ("other+file:///a.txt", None),
        ("file:///a.txt", None),
        ("docs+", None),
        ("ui://docs/page/a.html", (DOCS, "ui://page/a.html")),
        ("docs+ui://page", (DOCS, "ui://page")),
        ("ui://other/page", None),
        ("ui://docs", None),
        ("ui://docs/", None),
        ("ui:///docs", None),
    ],
)
def test_only_an_existing_slug_resolves_to_a_server(uri: str, expected: object) -> None:
    assert resolve_uri(uri, SERVERS) == expected


def test_a_read_resource_has_the_requested_uri() -> None:
    result = {"contents": [{"uri": "a://1", "text": "a://1"}, {"text": "no uri"}, "odd"], "x": 1}
    assert rename_resources(result, add_prefix) == {
        "contents": [{"uri": "docs+a://1", "text": "a://1"}, {"text": "no uri"}, "odd"],
        "x": 1,
    }


@pytest.mark.parametrize(
    "result",
    [
        {"contents": [{"uri": "a://1"}]},
        {"content": [{"type": "text"}, {"type": "resource_link", "uri": "a://1"}]},
        {"content": [{"type": "resource", "resource": {"uri": "a://2"}}]},
        {"messages": [{"content": {"type": "resource_link", "uri": "a://1"}}]},
        {"content": [], "_meta": {"ui": {"resourceUri": "ui://page"}}},
    ],
)
def test_a_result_with_uris_may_have_some(result: dict[str, Any]) -> None:
    assert rename_resources(result, add_prefix) != result
    assert may_have_uris(result)


def test_a_result_of_text_has_no_uris() -> None:
    blocks = [{"type": "text", "text": "a://1", "uri": "a://1"}]
    result = {"content": blocks, "structuredContent": {"uri": "a://1"}, "isError": False}
    assert not may_have_uris(result)
    assert rename_resources(result, add_prefix) == result


def test_only_links_and_embedded_resources_of_a_result_are_renamed() -> None:
    blocks = [
        {"type": "resource_link", "uri": "a://1", "name": "one"},
        {"type": "resource", "resource": {"uri": "a://2", "text": "two"}},
        {"type": "text", "text": "a://3"},
        "odd",
    ]
    renamed = rename_resources({"content": blocks}, add_prefix)["content"]
    assert [renamed[0]["uri"], renamed[1]["resource"]["uri"]] == ["docs+a://1", "docs+a://2"]
    assert renamed[2:] == blocks[2:]


def test_prompts_are_renamed_with_one_or_many_content_blocks() -> None:
    link = {"type": "resource_link", "uri": "a://1"}
    messages = [{"role": "user", "content": link}, {"role": "user", "content": [link]}, "odd"]
    renamed = rename_resources({"messages": messages}, add_prefix)["messages"]
    assert renamed[0]["content"]["uri"] == "docs+a://1"
    assert renamed[1]["content"] == [renamed[0]["content"]]
    assert renamed[2] == "odd"


def test_an_invalid_result_is_unchanged() -> None:
    assert rename_resources("odd", add_prefix) == "odd"
    result = {"structuredContent": {"uri": "a://1"}}
    assert rename_resources(result, add_prefix) is result


@pytest.mark.parametrize("meta", [None, {}, {"ui": "odd"}, {"ui": {"resourceUri": 7}}])
def test_a_tool_without_an_app_page_is_unchanged(meta: object) -> None:
    tool = {"name": "show", "_meta": meta}
    assert rename_app_page(tool, add_prefix) == tool


def test_an_app_page_keeps_its_scheme_and_the_authority_names_the_server() -> None:
    csp = {"connectDomains": ["https://api.example.com"]}
    meta = {
        "ui": {"resourceUri": "ui://page/a.html", "csp": csp},
        "ui/resourceUri": "ui://page/a.html",
        "openai/outputTemplate": "ui://page/a.html",
        "y": 2,
    }
    uri = "ui://s9.lives/page/a.html"
    renamed = {
        "ui": {"resourceUri": uri, "csp": csp},
        "ui/resourceUri": uri,
        "openai/outputTemplate": uri,
        "y": 2,
    }
    rename = partial(expose_uri, build_uri_prefix("9_lives"))
    for key in ("content", "inputSchema"):
        assert rename_app_page({key: [], "_meta": meta}, rename)["_meta"] == renamed
    assert rename_resources({"content": [], "_meta": meta}, rename)["_meta"] == renamed


@pytest.mark.parametrize(
    "uri", ["ui://page", "ui://a/b?c#d", "ui://{x}/y", "ui://docs+x/", "a://b"]
)
def test_an_exposed_uri_resolves_to_the_same_one_of_its_server(uri: str) -> None:
    for slug, server_id in (("docs", DOCS), ("9_lives", LIVES)):
        exposed = expose_uri(build_uri_prefix(slug), uri)
        assert exposed.startswith("ui://") == uri.startswith("ui://")
        assert resolve_uri(exposed, SERVERS) == (server_id, uri)
    assert expose_uri("", uri) == uri
