"""Hidden characters are removed from results, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.scanning import InspectedText, clean_result, find_hidden_runs, inspect_result
from tests import corpus

tricky = st.text(
    st.sampled_from("abc \n\x1b[]0;m\x07\\\u200b\u200c\u200d\u0627\u0645\u202e\u2067\u2069\u200f")
    | st.sampled_from("🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e007f\ufe0f🔥葛\U000e0100"),
    max_size=60,
)


def test_text_without_hidden_characters_is_the_same_object() -> None:
    text = "नमस्ते \u0928\u094d\u200d 👨\u200d👩\u200d👧\r\n\tend"
    cleaned = clean_result(text)
    assert cleaned.text is text
    assert cleaned.removed == {}
    assert cleaned.removed_count == 0


def test_hidden_characters_are_removed_and_counted_by_rule() -> None:
    cleaned = clean_result("a\u200bb\u200bc \x1b[31mred\x1b[0m \U000e0041\U000e0042.")
    assert cleaned.text == "abc red ."
    assert cleaned.removed == {"zero_width": 2, "ansi_escape": 9, "tag_character": 2}
    assert cleaned.removed_count == 13


def test_terminal_sequences_are_removed_and_their_text_kept() -> None:
    link = "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\"
    assert clean_result(f"see {link} here").text == "see click here"
    assert clean_result("\x1b]52;c;Y3VybA==\x07done").text == "done"
    assert clean_result("\x1b[2J\x1b[1;1HAll passed.").text == "All passed."


def test_an_unterminated_sequence_removes_no_text() -> None:
    assert clean_result("\x1b]0;title and the rest\nmore").text == "0;title and the rest\nmore"


def test_many_open_sequences_are_cleaned_in_linear_time() -> None:
    assert clean_result("\x1b]" * 100_000).text == ""
    assert len(clean_result("\x1b]x" * 100_000).text) == 100_000


def test_a_flood_of_invisible_characters_is_removed_quickly() -> None:
    cleaned = clean_result("a\u200b\u200c" * 20_000 + "👨\u200d👩")
    assert cleaned.text == "a" * 20_000 + "👨👩"
    assert cleaned.removed == {"flood": 40_001}


@given(st.text() | tricky)
def test_a_cleaned_text_has_no_hidden_characters_and_keeps_the_visible_ones(text: str) -> None:
    cleaned = clean_result(text)
    assert list(find_hidden_runs(cleaned.text)) == []
    assert cleaned.removed_count == len(text) - len(cleaned.text)
    remaining = iter(text)
    assert all(character in remaining for character in cleaned.text)


@given(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)))
def test_printable_text_is_unchanged(text: str) -> None:
    assert clean_result(text).text == text


def compute_share(values: list[bool]) -> float:
    return sum(values) / len(values)


def inspect_rows(label: str) -> list[tuple[dict[str, Any], InspectedText]]:
    rows = [row for row in corpus.read_samples("tool_results.json") if row["label"] == label]
    return [(row, inspect_result(row["text"])) for row in rows]


@pytest.mark.corpus
def test_few_benign_results_of_the_sample_are_flagged() -> None:
    assert (
        compute_share([bool(inspected.flagged) for _, inspected in inspect_rows("benign")]) <= 0.03
    )


@pytest.mark.corpus
def test_benign_results_of_the_sample_lose_only_remote_images() -> None:
    for row, inspected in inspect_rows("benign"):
        assert set(inspected.sanitized) <= {"remote_image"}, row["id"]
        assert inspected.sanitized or inspected.text == row["text"]


@pytest.mark.corpus
def test_most_injections_of_the_sample_are_flagged() -> None:
    """Only those in words: hidden and active content is removed instead of flagged."""
    silent = ("authored:ansi", "authored:css", "authored:meta", "content_block:")
    pairs = [pair for pair in inspect_rows("malicious") if not pair[0]["cls"].startswith(silent)]
    assert compute_share([bool(inspected.flagged) for _, inspected in pairs]) >= 0.6


@pytest.mark.corpus
def test_most_malicious_results_of_the_sample_are_flagged_or_changed() -> None:
    rows = inspect_rows("malicious")
    assert (
        compute_share(
            [bool(inspected.flagged) or inspected.text != row["text"] for row, inspected in rows]
        )
        >= 0.85
    )


@pytest.mark.corpus
def test_hidden_and_active_content_of_the_sample_is_removed() -> None:
    active = ("authored:ansi", "authored:bidi", "authored:css", "authored:meta", "authored:chatml")
    rows = [pair for pair in inspect_rows("malicious") if pair[0]["cls"].startswith(active)]
    assert len(rows) >= 5
    assert [row["id"] for row, inspected in rows if not inspected.sanitized] == []


@pytest.mark.corpus
def test_benign_results_of_the_sample_are_unchanged() -> None:
    changed = [
        row["id"]
        for row in corpus.read_samples("tool_results.json")
        if row["label"] == "benign" and clean_result(row["text"]).text != row["text"]
    ]
    assert changed == []
