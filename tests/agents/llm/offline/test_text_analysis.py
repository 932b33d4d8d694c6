"""Extracting values and their kinds from plain text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.offline.text_analysis import extract_time_zones, extract_values

VALUES = [
    ("in Asia/Tokyo and asia/tokyo", [("timezone", "Asia/Tokyo")] * 2),
    ("tokyo time", []),
    ("in tokyo, from new york", [("timezone", "Asia/Tokyo"), ("timezone", "America/New_York")]),
    ("San Francisco or PST", [("timezone", "America/Los_Angeles")] * 2),
    ("Rio de Janeiro", [("timezone", "America/Sao_Paulo")]),
    (
        "at 2pm, 2:05 PM, 14:30:09, noon",
        [("time", t) for t in ("14:00", "14:05", "14:30:09", "12:00")],
    ),
    ("12 am and 12:15pm", [("time", "00:00"), ("time", "12:15")]),
    ("25:99 or 14:305", []),
    ("(see https://a.b/c?d=e#f).", [("url", "https://a.b/c?d=e#f")]),
    ("mail bob.b+x@ex-ample.org!", [("email", "bob.b+x@ex-ample.org")]),
    ("on 2030-01-31", [("date", "2030-01-31")]),
    ("2030-01-31T10:00:00Z", [("datetime", "2030-01-31T10:00:00Z")]),
    ("/etc/hosts, ~/x and ./y.", [("path", p) for p in ("/etc/hosts", "~/x", "./y")]),
    ("src/main.py C:\\Temp\\a", [("path", "src/main.py"), ("path", "C:\\Temp\\a")]),
    ("and/or 3/4 example.com", []),
    ("HEAD~2 or deadbee1", [("revision", "HEAD~2"), ("revision", "deadbee1")]),
    ("-5, 1,000 and 2.5e3", [("number", -5), ("number", 1000), ("number", 2500.0)]),
    ("v1.2.3 x86", []),
    ("two apples", [("number word", 2)]),
    ("123e4567-e89b-12d3-a456-426614174000", [("uuid", "123e4567-e89b-12d3-a456-426614174000")]),
    ("say “hi” or `x`", [("quoted", "hi"), ("quoted", "x")]),
    ("don't, can't", []),
    ("I may wake up in the center of the west", []),
]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=[text for text, _ in VALUES])
def test_values_are_found_with_their_kinds(text: str, expected: list[tuple[str, object]]) -> None:
    assert [(value.kind, value.value) for value in extract_values(text)] == expected


def test_a_quotation_is_preferred_to_values_inside_it() -> None:
    values = [(value.kind, value.value) for value in extract_values('"Asia/Tokyo"')]
    assert values == [("quoted", "Asia/Tokyo"), ("timezone", "Asia/Tokyo")]


@given(st.text(max_size=300))
def test_found_values_are_within_the_text_and_dont_overlap(text: str) -> None:
    values = extract_values(text)
    assert all(0 <= value.start < value.end <= len(text) for value in values)
    unquoted = sorted((v for v in values if v.kind != "quoted"), key=lambda v: v.start)
    assert all(a.end <= b.start for a, b in pairwise(unquoted))


def test_positions_of_values_are_correct() -> None:
    text = "Compare Paris with Buenos Aires"
    assert [(text[a:b], zone) for a, b, zone in extract_time_zones(text)] == [
        ("Paris", "Europe/Paris"),
        ("Buenos Aires", "America/Buenos_Aires"),
    ]
