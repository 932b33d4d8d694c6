"""Every string of a definition is read, wherever it stands."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.scanning import scan

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
BAD = "pay\u200bload"


def definition() -> dict[str, Any]:
    return {
        "name": "list_buckets",
        "title": "List buckets",
        "description": "Lists the buckets of an account.",
        "inputSchema": {
            "type": "object",
            "properties": {"prefix": {"type": "string", "description": "…", "enum": ["a", "b"]}},
        },
        "outputSchema": {"type": "object"},
        "annotations": {"title": "List"},
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"ui": {"resourceUri": "ui://x"}},
    }


def test_an_honest_definition_has_no_findings() -> None:
    assert scan(definition()) == ()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (("name",), "$.name"),
        (("title",), "$.title"),
        (("description",), "$.description"),
        (
            ("inputSchema", "properties", "prefix", "description"),
            "$.inputSchema.properties.prefix.description",
        ),
        (
            ("inputSchema", "properties", "prefix", "enum", 1),
            "$.inputSchema.properties.prefix.enum[1]",
        ),
        (("outputSchema", "type"), "$.outputSchema.type"),
        (("annotations", "title"), "$.annotations.title"),
        (("icons", 0, "src"), "$.icons[0].src"),
        (("_meta", "ui", "resourceUri"), "$._meta.ui.resourceUri"),
    ],
)
def test_each_place_is_scanned_and_named(path: tuple[str | int, ...], shown: str) -> None:
    payload: Any = definition()
    place = payload
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = BAD
    (finding,) = scan(payload)
    assert (finding.tier, finding.rule, finding.path) == ("hard", "zero_width", shown)
    assert "⟨U+200B⟩" in finding.excerpt
    assert (finding.start, finding.end) == (3, 4)


def test_keys_are_scanned_and_shown_without_hiding() -> None:
    (finding,) = scan({"inputSchema": {"properties": {"pre\u200bfix": {}}}})
    assert finding.path == "$.inputSchema.properties['pre⟨U+200B⟩fix'] (key)"


def test_a_finding_is_stored_as_plain_json() -> None:
    (finding,) = scan({"name": BAD})
    assert json.loads(json.dumps(finding.as_dict())) == {
        "tier": "hard",
        "rule": "zero_width",
        "path": "$.name",
        "excerpt": "pay⟨U+200B⟩load",
        "start": 3,
        "end": 4,
    }


def test_one_finding_stands_for_a_rule_and_place_and_there_are_at_most_fifty() -> None:
    assert len(scan({"description": BAD * 1000})) == 1
    assert len(scan({"list": [BAD] * 1000})) == 50


def test_excerpts_are_short() -> None:
    (finding,) = scan({"description": "x" * 10_000 + "\U000e0041" * 10_000 + "y" * 10_000})
    assert len(finding.excerpt) < 2000


def test_deep_payloads_are_read_to_the_bottom() -> None:
    payload: Any = BAD
    for _ in range(5_000):
        payload = [payload]
    assert len(scan(payload)) == 1


@given(
    st.recursive(
        st.text() | st.integers() | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_any_json_is_scanned_without_a_fault(payload: Any) -> None:
    for finding in scan(payload):
        assert finding.tier == "hard"
        assert finding.excerpt


def corpus(name: str) -> list[dict[str, Any]]:
    if not CORPUS.is_dir():
        pytest.skip(f"the sample definitions are not at {CORPUS}")
    rows: list[dict[str, Any]] = json.loads((CORPUS / name).read_text(encoding="utf-8"))["items"]
    return rows


def test_no_benign_definition_of_the_sample_is_refused() -> None:
    refused = [
        row["id"]
        for row in corpus("benign_tools.json")
        if scan({"name": row["name"], "description": row["description"]})
    ]
    assert refused == []


def test_every_invisible_attack_of_the_sample_is_refused() -> None:
    kinds = ("unicode_", "zero_width", "variation_selector", "bidi_", "ansi_")
    invisible = [
        row
        for row in corpus("poisoned_tools.json")
        if str(row.get("derived") or row["cls"]).startswith(kinds)
    ]
    missed = [row["id"] for row in invisible if not scan({"description": row["description"]})]
    assert len(invisible) >= 10
    assert missed == []
