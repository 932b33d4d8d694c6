"""Audit entries with the codes and actions of version 0.1."""

import pytest

from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.renamed_codes import (
    RENAMED_ACTIONS,
    RENAMED_CODES,
    add_old_codes,
    list_action_names,
    list_code_names,
)


def test_old_codes_are_added_when_the_new_ones_are_in_the_set() -> None:
    assert add_old_codes({"not_attached", "unknown_tool"}) == {
        "not_attached",
        "not_bound",
        "unknown_tool",
    }


@pytest.mark.parametrize("name", ["server_bound", "server_attached"])
def test_an_action_is_listed_with_all_its_names(name: str) -> None:
    assert list_action_names(name) == ["server_attached", "server_bound"]


def test_a_code_that_was_never_renamed_is_listed_alone() -> None:
    assert list_code_names("timeout") == ["timeout"]


def test_old_actions_have_the_titles_of_the_new_ones() -> None:
    assert format_action("server_bound") == format_action("server_attached") == "server attached"


def test_no_new_name_was_renamed_again() -> None:
    assert not RENAMED_ACTIONS.keys() & set(RENAMED_ACTIONS.values())
    assert not RENAMED_CODES.keys() & set(RENAMED_CODES.values())
