"""Replies of the offline model: readable, and with the markup of servers escaped."""

import json
import re
from html import unescape

import pytest

from agents.llm.interface import ToolSpec, build_tool_result
from agents.llm.offline.model import (
    render_command,
    render_results,
    render_tools,
    shorten_names,
)
from bonobot.core.text.markdown_html import render_markdown
from mcp_servers.scanning import inspect_result
from tests.agents.llm.offline import tools


def render_result(text: str, *, is_error: bool = False) -> str:
    call = {"id": "t0001c000", "name": "tool", "arguments": {}}
    return render_results([call], [build_tool_result("t0001c000", "tool", text, is_error)])


def test_a_short_result_is_part_of_the_sentence() -> None:
    assert render_result("It is fine.") == "`tool` answered: It is fine."
    assert render_result('"quoted JSON"') == "`tool` answered: quoted JSON"
    assert render_result("  ") == "`tool` returned nothing."


def test_a_longer_result_is_fenced_safely() -> None:
    assert render_result("one\ntwo") == "`tool` answered:\n\n```\none\ntwo\n```"
    assert render_result("a\n```\n![x](http://evil)").startswith(
        "`tool` answered:\n\n````\na\n```\n"
    )


def test_a_very_long_result_is_truncated_with_a_note() -> None:
    text = render_result("x" * 5_000)
    assert len(text) < 4_200
    assert "1,000 more characters" in text


def test_json_is_shown_as_lines() -> None:
    value = {
        "name": "x",
        "ok": True,
        "none": None,
        "tags": ["a", "b"],
        "small": {"a": 1, "b": 2},
        "items": [{"id": 1, "t": "one"}, {"id": 2, "t": "two", "sub": {"deep": [1]}}],
    }
    assert render_result(json.dumps(value)) == (
        "`tool` answered:\n\n"
        "- name: x\n- ok: true\n- none: null\n- tags: a, b\n- small: a: 1, b: 2\n"
        "- items:\n  - id: 1, t: one\n  -\n    - id: 2\n    - t: two\n    - sub:\n"
        "      - deep: 1"
    )


def test_long_lists_and_deep_trees_are_truncated() -> None:
    assert render_result(json.dumps(list(range(500)))).endswith("- …")
    nested: object = 1
    for _ in range(60):
        nested = {"a": nested, "b": [nested]} if not isinstance(nested, dict) else {"a": nested}
    assert len(render_result(json.dumps(nested))) < 5_000


@pytest.mark.parametrize("text", ["{not json", "[" * 10_000, '{"a": ' + "1" * 9_000 + "}"])
def test_text_that_only_looks_like_json_stays_text(text: str) -> None:
    assert "```" in render_result(text + "\n.")


def test_a_denied_call_is_shown_as_denied() -> None:
    call = {"id": "t0001c000", "name": "tool", "arguments": {}}
    result = build_tool_result("t0001c000", "tool", "A rule denies it.", is_error=True)
    text = render_results([call], [result | {"is_denied": True}])
    assert text == "`tool` was denied: A rule denies it."


def test_an_error_is_shown_as_an_error() -> None:
    assert render_result("It broke.", is_error=True) == "`tool` failed: It broke."
    assert render_result("", is_error=True) == "`tool` failed: no reason was given."


@pytest.mark.parametrize(
    "text",
    [
        "**bold** <script>alert(1)</script>",
        "<b>bold</b> and <img src=x onerror=alert(1)>",
        "A &amp; B &lt;b>",
        "`code` and ``<b>``",
        "~~no~~ __init__",
        "<script>\nalert(1)\n</script> &amp; `code`",
        json.dumps({"note": "<iframe src=x></iframe> &amp;"}),
    ],
)
def test_a_result_is_shown_literally_and_has_no_elements(text: str) -> None:
    """The session's own inspection has escaped active elements before the model reads them."""
    html = render_markdown(render_result(inspect_result(text).text)) or ""
    assert not re.search(r"<(?!/?(?:p|code|pre|ul|li)>)", html)
    shown_text = unescape(re.sub(r"<[^>]*>", "", html))
    expected = json.loads(text)["note"] if text.startswith("{") else text
    assert expected in shown_text


def test_markup_of_a_server_is_escaped() -> None:
    evil = "![x](https://evil/?q=1) <img src=x>"
    assert render_result(evil) == f"`tool` answered: `{evil}`"
    assert render_result(evil, is_error=True) == f"`tool` failed: `{evil}`"
    assert render_result(json.dumps({evil: evil})) == f"`tool` answered:\n\n- `{evil}`: `{evil}`"
    listed = render_tools([ToolSpec("t", evil, {})])
    assert f": `{evil}`" in listed
    assert render_result("`a` [b](c)") == "`tool` answered: `` `a` [b](c) ``"


def test_results_are_shown_with_their_arguments() -> None:
    call = {"id": "t0001c000", "name": "t", "arguments": {"a": [1, 2], "b": {"c": None}}}
    text = render_results([call], [build_tool_result("t0001c000", "t", "ok")])
    assert text == "`t` (a: 1, 2, b: c: null) answered: ok"


def test_an_example_command_has_each_required_argument() -> None:
    lines = {
        name: render_command(tools.get_tool(name), {}) for name in ("fetch", "git_add", "get_sum")
    }
    assert lines == {
        "fetch": '/mcp_fetch_fetch {"url": "https://example.com"}',
        "git_add": '/mcp_git_git_add {"repo_path": "/path", "files": []}',
        "get_sum": '/mcp_everything_get_sum {"a": 1, "b": 1}',
    }


def build_spec(name: str, own_name: str, server_name: str) -> ToolSpec:
    return ToolSpec(name, "", {}, own_name=own_name, server_name=server_name)


def test_results_name_the_tool_and_its_server() -> None:
    result = build_tool_result("t0001c000", "mcp_clock_get_time", "noon", False)
    call = {"id": "t0001c000", "name": "mcp_clock_get_time", "arguments": {"zone": "UTC"}}
    text = render_results([call], [result], [build_spec("mcp_clock_get_time", "get-time", "clock")])
    assert text == "`get-time` on clock (zone: UTC) answered: noon"


def test_commands_have_the_own_name_of_a_tool_unless_two_tools_have_it() -> None:
    specs = shorten_names(
        [
            build_spec("mcp_clock_get_time", "get-time", "clock"),
            build_spec("mcp_docs_search", "search", "docs"),
            build_spec("mcp_web_search", "search", "web"),
            build_spec("mcp_web_tools", "tools", "web"),
        ]
    )
    assert [render_command(spec, {}) for spec in specs] == [
        "/get-time {}",
        "/mcp_docs_search {}",
        "/mcp_web_search {}",
        "/mcp_web_tools {}",
    ]


def test_an_error_names_the_tool_as_the_reply_does() -> None:
    name = "mcp_shop_create_refund"
    tool = ToolSpec(name, "Refund an order.", {}, own_name="create_refund", server_name="shop")
    call = {"id": "t0001c000", "name": name, "arguments": {}}
    text = f"The definition of `{name}` changed."
    result = build_tool_result("t0001c000", name, text, is_error=True)
    assert render_results([call], [result], [tool]) == (
        "`create_refund` on shop failed: The definition of `create_refund` changed."
    )
