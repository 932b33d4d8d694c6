"""Grants: what a person lets a program do, at one address, for as long as it is theirs to give."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from agents.models import Agent
from bonobot.accounts.models import Membership, Organization, Token, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import ROLE_ACTIONS, Role, TokenScope, list_roles_within
from bonobot.accounts.services import remove_member, update_member_role
from bonobot.accounts.tokens import services as tokens
from bonobot.accounts.tokens.cache import load_verified_token
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db

HERE = "https://bonobot.example.com/mcp/agents/helper"


@pytest.fixture
def acme() -> Organization:
    made = factories.create_organization()
    factories.create_member(made, Role.OWNER, "owner")
    return made


@pytest.fixture
def olga(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.OPERATOR).id)


def give(user: User, where: Organization, role: Role = Role.MEMBER, **more: object) -> Token:
    said = {"resource": HERE, "client_id": "ide", "client": "IDE", "scopes": [TokenScope.TOOLS]}
    return tokens.create_grant(user, where, role=role, **(said | more))  # type: ignore[arg-type]


def fetched(token: Token) -> str:
    text = tokens.rotate_grant(token, first=True)
    assert text is not None
    return text


def opens(text: str) -> bool:
    try:
        load_verified_token(text, "")
    except tokens.InvalidToken:
        return False
    return True


def test_a_client_acts_for_its_person_at_one_endpoint(acme: Organization, olga: User) -> None:
    known = load_verified_token(fetched(give(olga, acme)), "")
    assert known.is_for(HERE)
    assert not known.is_for("https://bonobot.example.com/mcp")
    assert known.principal.granted_by_id == olga.pk
    assert (known.principal.role, known.principal.scopes) == (Role.MEMBER, {TokenScope.TOOLS})
    assert known.principal.label == "IDE (operator-acme)"
    assert not known.principal.platform_admin


def test_an_oauth_token_is_never_valid_for_rest(acme: Organization, olga: User) -> None:
    with pytest.raises(tokens.InvalidToken):
        tokens.authenticate_token(fetched(give(olga, acme)))


def test_a_grant_is_unusable_before_its_first_token_is_fetched(
    acme: Organization, olga: User
) -> None:
    token = give(olga, acme)
    assert token.digest == ""
    assert not opens(f"bno_{token.key}_")
    assert not opens(f"bno_{token.key}_x")


def test_a_late_or_second_fetch_gets_no_token(acme: Organization, olga: User) -> None:
    token = give(olga, acme)
    text = fetched(token)
    assert tokens.rotate_grant(token, first=True) is None
    assert opens(text)
    late = give(olga, acme)
    with time_machine.travel(timezone.now() + timedelta(seconds=61)):
        assert tokens.rotate_grant(late, first=True) is None


def test_a_new_access_token_invalidates_the_previous_one(acme: Organization, olga: User) -> None:
    token = give(olga, acme)
    before = fetched(token)
    after = tokens.rotate_grant(token, first=False)
    assert after is not None
    assert opens(after)
    assert not opens(before)


def test_an_access_token_is_valid_for_an_hour_and_a_grant_for_a_month(
    acme: Organization, olga: User
) -> None:
    token = give(olga, acme)
    text = fetched(token)
    with time_machine.travel(timezone.now() + timedelta(minutes=61)):
        assert not opens(text)
        token.refresh_from_db()
        assert tokens.rotate_grant(token, first=False) is not None
    with time_machine.travel(timezone.now() + timedelta(days=31)):
        assert tokens.rotate_grant(token, first=False) is None


def lower(acme: Organization, olga: User) -> None:
    update_member_role(
        factories.build_administrator(acme), Membership.objects.get(user=olga), Role.AUDITOR
    )


def leave(acme: Organization, olga: User) -> None:
    remove_member(factories.build_administrator(acme), Membership.objects.get(user=olga))


def switch_off(acme: Organization, olga: User) -> None:
    olga.is_active = False
    olga.save()


def halt(acme: Organization, olga: User) -> None:
    Organization.objects.filter(pk=acme.pk).update(halted_at=timezone.now())


def revoke(acme: Organization, olga: User) -> None:
    tokens.revoke_token(factories.build_administrator(acme), Token.objects.get())


@pytest.mark.parametrize("ending", [lower, leave, switch_off, halt, revoke])
def test_a_grant_ends_with_its_person_or_client(
    ending: Callable[[Organization, User], None], acme: Organization, olga: User
) -> None:
    token = give(olga, acme)
    text = fetched(token)
    assert opens(text)
    ending(acme, olga)
    assert not opens(text)
    assert tokens.rotate_grant(token, first=False) is None


@pytest.mark.parametrize("role", list(Role))
def test_a_person_cant_grant_more_than_they_have(role: Role, acme: Organization) -> None:
    giver = factories.create_member(acme, role)
    user = User.objects.get(pk=giver.id)
    for other in Role:
        if other in list_roles_within(role):
            assert ROLE_ACTIONS[other] <= ROLE_ACTIONS[role]
            assert opens(fetched(give(user, acme, other)))
        else:
            with pytest.raises(Forbidden):
                give(user, acme, other)


def test_a_person_who_isnt_a_member_cant_grant_access(acme: Organization, olga: User) -> None:
    with pytest.raises(Forbidden):
        give(olga, factories.create_organization("globex"))


@pytest.mark.parametrize("scopes", [[], ["api"], ["mcp:tools", "api"], ["nonsense"]])
def test_a_client_cant_be_authorized_for_rest(
    scopes: list[str], acme: Organization, olga: User
) -> None:
    with pytest.raises(InvalidInput):
        give(olga, acme, scopes=scopes)


def test_a_person_can_revoke_only_their_own_grants(acme: Organization, olga: User) -> None:
    mine, other = give(olga, acme), factories.create_member(acme, Role.MEMBER)
    with pytest.raises(Forbidden):
        tokens.revoke_token(other, mine)
    tokens.revoke_token(build_user_principal(olga, acme), mine)
    assert not Token.objects.active().exists()


def test_others_can_limit_a_grant_but_not_extend_it(acme: Organization, olga: User) -> None:
    token, boss = give(olga, acme), factories.build_administrator(acme)
    with pytest.raises(Conflict) as refused:
        tokens.update_token(boss, token, scopes=["mcp:manage"])
    assert refused.value.code == "grant_fixed"
    token.refresh_from_db()
    tokens.update_token(boss, token, networks=["10.0.0.0/8"])
    known = Token.objects.get(pk=token.pk)
    assert known.networks == ["10.0.0.0/8"]


def test_a_person_sees_their_authorized_clients(acme: Organization, olga: User) -> None:
    token = give(olga, acme)
    assert tokens.list_user_grants(olga.pk) == []  # nothing came of it yet
    fetched(token)
    assert tokens.list_user_grants(olga.pk) == [token]
    assert tokens.list_user_grants(User.objects.create(username="x").pk) == []


def test_the_audit_log_has_the_grant_and_why_it_ended(acme: Organization, olga: User) -> None:
    token = give(olga, acme)
    text = fetched(token)
    tokens.end_grant(token, reason="refresh_reused")
    given, ended = AuditRow.objects.filter(resource_id=str(token.pk)).order_by("seq")
    assert (given.action, given.actor_id, ended.action) == (
        "grant_given",
        str(olga.pk),
        "grant_ended",
    )
    token.refresh_from_db()
    for row in (given, ended):
        assert text not in str(row.__dict__)
        assert token.digest not in str(row.__dict__)


def reach(principal: Principal, agent: Agent) -> bool:
    return Agent.objects.open_to(principal).filter(pk=agent.pk).exists()


def test_a_client_reaches_an_agent_as_long_as_its_person_does(acme: Organization) -> None:
    agent = factories.create_agent(acme)
    user = User.objects.get(pk=factories.create_member(acme, Role.MEMBER).id)
    agent.members.add(user)
    known = load_verified_token(fetched(give(user, acme, agent_ids=[agent.pk])), "").principal
    assert reach(known, agent)
    agent.members.remove(user)
    assert not reach(known, agent)
