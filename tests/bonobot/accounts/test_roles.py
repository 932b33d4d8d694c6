"""The one table of who may do what."""

from bonobot.accounts.roles import PLATFORM_ONLY, ROLE_ACTIONS, Action, Role, may


def test_every_role_stands_in_the_table():
    assert set(ROLE_ACTIONS) == set(Role)


def test_an_owner_may_all_that_is_not_the_platforms():
    assert ROLE_ACTIONS[Role.OWNER] == set(Action) - PLATFORM_ONLY


def test_what_is_the_platforms_no_role_may():
    assert not any(may(role, action) for role in Role for action in PLATFORM_ONLY)


def test_whoever_only_reads_may_change_nothing():
    reads = {Action.VIEW, Action.VIEW_AUDIT}
    assert ROLE_ACTIONS[Role.AUDITOR] == reads


def test_no_lesser_role_may_what_an_owner_may_not():
    assert all(ROLE_ACTIONS[role] <= ROLE_ACTIONS[Role.OWNER] for role in Role)
