"""Selecting the tools of an attached server, by name or pattern."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policies.rules import build_globs, clean_patterns, escape_glob, is_name_allowed
from bonobot.core.problems import InvalidInput

NAMES = st.text(min_size=1, max_size=12)
DECLARED = ("add", "add_all", "echo")


def get_code(*args: object, **more: object) -> str:
    with pytest.raises(InvalidInput) as caught:
        clean_patterns(*args, **more)  # type: ignore[arg-type]
    return caught.value.code


def test_all_tools_must_be_selected_explicitly_and_not_by_an_empty_list() -> None:
    assert clean_patterns(["*"], DECLARED) == clean_patterns(["echo", "*"], ()) == []
    assert get_code([], DECLARED) == get_code([], ()) == "nothing_selected"


def test_each_name_or_pattern_must_match_a_declared_tool() -> None:
    assert clean_patterns(["add*", "echo", "echo"], DECLARED) == ["add*", "echo"]
    assert get_code(["echo", "ehco"], DECLARED) == "unknown_tool"


def test_patterns_for_an_undiscovered_server_are_accepted() -> None:
    assert clean_patterns(["get_*"], ()) == ["get_*"]


def test_a_selection_equal_to_the_patterns_keeps_the_patterns() -> None:
    assert build_globs(["add", "add_all"], DECLARED, ["add*"]) == ["add*"]
    assert build_globs(["add"], DECLARED, ["add*"]) == ["add"]
    assert build_globs(DECLARED, DECLARED, []) == sorted(DECLARED)


@given(st.sets(NAMES, min_size=1), NAMES)
def test_selected_names_allow_only_these(names: set[str], other_name: str) -> None:
    globs = clean_patterns(build_globs(names, names, []), names)
    assert all(is_name_allowed(name, globs) for name in names)
    assert is_name_allowed(other_name, globs) == (other_name in names)


@given(NAMES, NAMES)
def test_a_denied_name_is_never_allowed(name: str, other_name: str) -> None:
    assert not is_name_allowed(name, [], [escape_glob(name)])
    assert is_name_allowed(other_name, [], [escape_glob(name)]) == (name != other_name)
