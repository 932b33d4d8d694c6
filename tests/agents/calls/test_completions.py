"""Completions of servers are bounded and cleaned."""

from agents.calls.completions import clean_completion


def test_any_completion_is_bounded_and_cleaned():
    values = ["a\u200b" * 900, 7, *(str(number) for number in range(200))]
    completion = clean_completion({"completion": {"values": values, "total": 5, "extra": 1}})[
        "completion"
    ]
    assert (len(completion["values"]), completion["hasMore"], completion["total"]) == (100, True, 5)
    assert set(completion["values"][0]) == {"a"}
    for invalid in ({}, {"completion": []}, {"completion": {"values": "text"}}):
        assert clean_completion(invalid)["completion"] == {"values": [], "hasMore": False}
