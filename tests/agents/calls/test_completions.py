"""Completions of skills, and those of servers, which are bounded and cleaned."""

from agents.calls.completions import clean_completion, complete_skill_argument


def test_any_completion_is_bounded_and_cleaned():
    values = ["a\u200b" * 900, 7, *(str(number) for number in range(200))]
    completion = clean_completion({"completion": {"values": values, "total": 5, "extra": 1}})[
        "completion"
    ]
    assert (len(completion["values"]), completion["hasMore"], completion["total"]) == (100, True, 5)
    assert set(completion["values"][0]) == {"a"}
    for invalid in ({}, {"completion": []}, {"completion": {"values": "text"}}):
        assert clean_completion(invalid)["completion"] == {"values": [], "hasMore": False}


def test_an_argument_of_a_skill_is_completed_by_its_choices_in_any_case():
    choices = {"tone": ("dry", "warm"), "version": ()}
    assert complete_skill_argument(choices, "tone", "W") == ["warm"]
    assert complete_skill_argument(choices, "version", "") == []
    assert complete_skill_argument(choices, "unknown", "") == []
