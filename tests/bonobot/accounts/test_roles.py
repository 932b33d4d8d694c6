"""The table of roles and permissions."""

import pytest

from bonobot.accounts.roles import (
    ACTION_TITLES,
    PLATFORM_ONLY,
    ROLE_ACTIONS,
    Action,
    Role,
    build_permission_error,
    may,
)


def test_every_role_is_in_the_table():
    assert set(ROLE_ACTIONS) == set(Role)


def test_every_action_has_a_title():
    assert set(ACTION_TITLES) == set(Action), (
        "name each action in `ACTION_TITLES` in bonobot/accounts/roles.py"
    )


def test_an_owner_has_all_permissions_except_the_platforms():
    assert ROLE_ACTIONS[Role.OWNER] == set(Action) - PLATFORM_ONLY


def test_no_role_has_platform_permissions():
    assert not any(may(role, action) for role in Role for action in PLATFORM_ONLY)


def test_read_only_roles_cant_change_anything():
    reads = {Action.VIEW, Action.VIEW_AUDIT}
    assert ROLE_ACTIONS[Role.AUDITOR] == reads


def test_no_role_has_a_permission_that_owners_lack():
    assert all(ROLE_ACTIONS[role] <= ROLE_ACTIONS[Role.OWNER] for role in Role)


@pytest.mark.parametrize("action", Action)
def test_a_refusal_says_what_isnt_allowed_and_who_can_change_that(action: Action):
    error = build_permission_error(Role.MEMBER, action)
    assert error.rule == f"role:{action}"
    assert str(error.detail).startswith("You don't have permission to ")
    allowed = [role for role in Role if may(role, action)]
    assert ("platform administrator" in str(error.remedy)) == (action in PLATFORM_ONLY)
    assert all(role in str(error.remedy) for role in allowed)
