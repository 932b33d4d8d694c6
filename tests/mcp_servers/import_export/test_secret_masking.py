"""No text crashes the import, and its output contains no secrets."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import Problem
from mcp_servers.import_export import ImportEntry, parse_import

CANARY = "canary-5f3a9b"
HTTP = {"url": "https://mcp.example.com/mcp"}


def try_parse(text: str) -> tuple[tuple[ImportEntry, ...], Problem | None]:
    """Return the entries of a text, or why there are none; any other exception fails the test."""
    try:
        return parse_import(text), None
    except Problem as problem:
        return (), problem


def build_servers(secret: str) -> dict[str, Any]:
    return {
        "web": {
            "url": f"https://x.example/?token={secret}",
            "headers": {"Authorization": f"Bearer {secret}", "X-Other": secret},
        },
        "key": {**HTTP, "headers": {"X-Api-Key": secret}},
        "oauth": {**HTTP, "auth": {"type": "oauth2", "client_id": "c", "client_secret": secret}},
        "local": {
            "command": "npx",
            "args": ["--api-key", secret, f"--token={secret}"],
            "env": {"A": secret, "B": f"x {secret} y", "C": secret},
        },
        "filled": {**HTTP, "headers": {"Authorization": "Bearer ${T}"}},
        "broken": {"url": f"ftp://user:{secret}@x.example", "type": "what"},
    }


def test_shown_values_contain_no_secret() -> None:
    entries = parse_import(json.dumps(build_servers(CANARY)), values={"T": CANARY})
    assert CANARY not in repr(entries)
    assert CANARY not in json.dumps([entry.build_preview() for entry in entries])
    assert all(CANARY in json.dumps(entry.build_configuration()) for entry in entries[:5])


@given(st.data())
def test_errors_of_invalid_texts_contain_no_secret(data: st.DataObject) -> None:
    text = json.dumps(build_servers(CANARY), indent=data.draw(st.sampled_from([None, 1])))
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(text) - 1))
        if CANARY in text[max(index - len(CANARY), 0) : index + len(CANARY)]:
            continue  # half a secret can't be searched for
        inserted = data.draw(
            st.sampled_from(["", '"', "'", ",", "{", "}", "[", "\\", "\n", "/*", ":"])
        )
        text = text[:index] + inserted + text[index + 1 :]
    entries, refusal = try_parse(text)
    assert refusal is None or CANARY not in json.dumps(refusal.as_dict())
    for entry in entries:
        assert CANARY not in repr(entry)
        problems = [problem.as_dict() for problem in entry.problems]
        assert CANARY not in json.dumps(problems)


@given(st.text() | st.text(st.sampled_from('{}[]",:\\/* \nabu0-1.truefalsn$')))
def test_any_text_is_parsed_or_refused_without_an_exception(text: str) -> None:
    entries, problem = try_parse(text)
    assert bool(entries) == (problem is None)
    for entry in entries:
        json.dumps(entry.build_preview())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "url",
                    "command",
                    "args",
                    "env",
                    "headers",
                    "type",
                    "name",
                    "servers",
                    "mcp",
                    "auth",
                ]
            )
            | st.sampled_from(
                ["endpoint_config", "auth_config", "enabled", "inputs", "id", "token"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(json_values)
def test_any_json_is_parsed_or_refused_without_an_exception(value: Any) -> None:
    entries, problem = try_parse(json.dumps(value))
    assert bool(entries) == (problem is None)
    for entry in entries:
        json.dumps(entry.build_preview())
        assert entry.is_valid == (not entry.problems)
        if entry.is_valid:
            assert entry.transport_type
            assert entry.slug
