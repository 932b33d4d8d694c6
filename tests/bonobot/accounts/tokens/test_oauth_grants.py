"""OAuth grants: a person authorizes a client for one endpoint, within the person's permissions."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from agents.models import Agent
from bonobot.accounts.members import remove_member, update_member_role
from bonobot.accounts.models import Membership, Organization, Token, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import ROLE_ACTIONS, Role, TokenScope, list_roles_within
from bonobot.accounts.tokens import oauth_grants
from bonobot.accounts.tokens import services as tokens
from bonobot.accounts.tokens.cache import load_verified_token
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.models import AuditRow
from tests import factories

pytestmark = pytest.mark.django_db

RESOURCE = "https://bonobot.example.com/mcp/agents/helper"


@pytest.fixture
def acme() -> Organization:
    organization = factories.create_organization()
    factories.create_member(organization, Role.OWNER, "owner")
    return organization


@pytest.fixture
def olga(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.OPERATOR).id)


def create_grant(
    user: User, organization: Organization, role: Role = Role.MEMBER, **overrides: object
) -> Token:
    fields = {
        "resource": RESOURCE,
        "client_id": "ide",
        "client": "IDE",
        "scopes": [TokenScope.TOOLS],
    }
    return oauth_grants.create_grant(user, organization, role=role, **(fields | overrides))  # type: ignore[arg-type]


def fetch_token(token: Token) -> str:
    text = oauth_grants.rotate_grant(token, first=True)
    assert text is not None
    return text


def is_valid(text: str) -> bool:
    try:
        load_verified_token(text, "")
    except tokens.InvalidToken:
        return False
    return True


def test_a_client_acts_for_its_person_at_one_endpoint(acme: Organization, olga: User) -> None:
    verified = load_verified_token(fetch_token(create_grant(olga, acme)), "")
    assert verified.is_for(RESOURCE)
    assert not verified.is_for("https://bonobot.example.com/mcp")
    assert verified.principal.granted_by_id == olga.pk
    assert (verified.principal.role, verified.principal.scopes) == (Role.MEMBER, {TokenScope.TOOLS})
    assert verified.principal.label == "IDE (operator-acme)"
    assert not verified.principal.platform_admin


def test_an_oauth_token_is_never_valid_for_rest(acme: Organization, olga: User) -> None:
    with pytest.raises(tokens.InvalidToken):
        tokens.authenticate_token(fetch_token(create_grant(olga, acme)))


def test_a_grant_is_unusable_before_its_first_token_is_fetched(
    acme: Organization, olga: User
) -> None:
    token = create_grant(olga, acme)
    assert token.digest == ""
    assert not is_valid(f"bno_{token.key}_")
    assert not is_valid(f"bno_{token.key}_x")


def test_a_late_or_second_fetch_gets_no_token(acme: Organization, olga: User) -> None:
    token = create_grant(olga, acme)
    text = fetch_token(token)
    assert oauth_grants.rotate_grant(token, first=True) is None
    assert is_valid(text)
    late = create_grant(olga, acme)
    with time_machine.travel(timezone.now() + timedelta(seconds=61)):
        assert oauth_grants.rotate_grant(late, first=True) is None


def test_a_new_access_token_invalidates_the_previous_one(acme: Organization, olga: User) -> None:
    token = create_grant(olga, acme)
    before = fetch_token(token)
    after = oauth_grants.rotate_grant(token, first=False)
    assert after is not None
    assert is_valid(after)
    assert not is_valid(before)


def test_an_access_token_is_valid_for_an_hour_and_a_grant_for_a_month(
    acme: Organization, olga: User
) -> None:
    token = create_grant(olga, acme)
    text = fetch_token(token)
    with time_machine.travel(timezone.now() + timedelta(minutes=61)):
        assert not is_valid(text)
        token.refresh_from_db()
        assert oauth_grants.rotate_grant(token, first=False) is not None
    with time_machine.travel(timezone.now() + timedelta(days=31)):
        assert oauth_grants.rotate_grant(token, first=False) is None


def lower_role(acme: Organization, olga: User) -> None:
    update_member_role(
        factories.build_administrator(acme), Membership.objects.get(user=olga), Role.AUDITOR
    )


def remove_from_organization(acme: Organization, olga: User) -> None:
    remove_member(factories.build_administrator(acme), Membership.objects.get(user=olga))


def deactivate(acme: Organization, olga: User) -> None:
    olga.is_active = False
    olga.save()


def halt_organization(acme: Organization, olga: User) -> None:
    Organization.objects.filter(pk=acme.pk).update(halted_at=timezone.now())


def revoke_client(acme: Organization, olga: User) -> None:
    tokens.revoke_token(factories.build_administrator(acme), Token.objects.get())


@pytest.mark.parametrize(
    "ending", [lower_role, remove_from_organization, deactivate, halt_organization, revoke_client]
)
def test_a_grant_ends_with_its_person_or_client(
    ending: Callable[[Organization, User], None], acme: Organization, olga: User
) -> None:
    token = create_grant(olga, acme)
    text = fetch_token(token)
    assert is_valid(text)
    ending(acme, olga)
    assert not is_valid(text)
    assert oauth_grants.rotate_grant(token, first=False) is None


@pytest.mark.parametrize("role", list(Role))
def test_a_person_cant_grant_more_than_they_have(role: Role, acme: Organization) -> None:
    giver = factories.create_member(acme, role)
    user = User.objects.get(pk=giver.id)
    for other in Role:
        if other in list_roles_within(role):
            assert ROLE_ACTIONS[other] <= ROLE_ACTIONS[role]
            assert is_valid(fetch_token(create_grant(user, acme, other)))
        else:
            with pytest.raises(Forbidden):
                create_grant(user, acme, other)


def test_a_person_who_isnt_a_member_cant_grant_access(acme: Organization, olga: User) -> None:
    with pytest.raises(Forbidden):
        create_grant(olga, factories.create_organization("globex"))


@pytest.mark.parametrize("scopes", [[], ["api"], ["mcp:tools", "api"], ["nonsense"]])
def test_a_client_cant_be_authorized_for_rest(
    scopes: list[str], acme: Organization, olga: User
) -> None:
    with pytest.raises(InvalidInput):
        create_grant(olga, acme, scopes=scopes)


def test_a_person_can_revoke_only_their_own_grants(acme: Organization, olga: User) -> None:
    own_token, other_member = create_grant(olga, acme), factories.create_member(acme, Role.MEMBER)
    with pytest.raises(Forbidden):
        tokens.revoke_token(other_member, own_token)
    tokens.revoke_token(build_user_principal(olga, acme), own_token)
    assert not Token.objects.active().exists()


def test_others_can_limit_a_grant_but_not_extend_it(acme: Organization, olga: User) -> None:
    token, administrator = create_grant(olga, acme), factories.build_administrator(acme)
    with pytest.raises(Conflict) as raised:
        tokens.update_token(administrator, token, scopes=["mcp:manage"])
    assert raised.value.code == "grant_fixed"
    token.refresh_from_db()
    tokens.update_token(administrator, token, networks=["10.0.0.0/8"])
    verified = Token.objects.get(pk=token.pk)
    assert verified.networks == ["10.0.0.0/8"]


def test_a_person_sees_their_authorized_clients(acme: Organization, olga: User) -> None:
    token = create_grant(olga, acme)
    assert oauth_grants.list_user_grants(olga.pk) == []  # no token was fetched yet
    fetch_token(token)
    assert oauth_grants.list_user_grants(olga.pk) == [token]
    assert oauth_grants.list_user_grants(User.objects.create(username="x").pk) == []


def test_the_audit_log_has_the_grant_and_why_it_ended(acme: Organization, olga: User) -> None:
    token = create_grant(olga, acme)
    text = fetch_token(token)
    oauth_grants.end_grant(token, reason="refresh_reused")
    granted, ended = AuditRow.objects.filter(resource_id=str(token.pk)).order_by("seq")
    assert (granted.action, granted.actor_id, ended.action) == (
        "client_access_granted",
        str(olga.pk),
        "client_access_revoked",
    )
    token.refresh_from_db()
    for row in (granted, ended):
        assert text not in str(row.__dict__)
        assert token.digest not in str(row.__dict__)


def can_reach(principal: Principal, agent: Agent) -> bool:
    return Agent.objects.open_to(principal).filter(pk=agent.pk).exists()


def test_a_client_reaches_an_agent_as_long_as_its_person_does(acme: Organization) -> None:
    agent = factories.create_agent(acme)
    user = User.objects.get(pk=factories.create_member(acme, Role.MEMBER).id)
    agent.members.add(user)
    verified = load_verified_token(
        fetch_token(create_grant(user, acme, agent_ids=[agent.pk])), ""
    ).principal
    assert can_reach(verified, agent)
    agent.members.remove(user)
    assert not can_reach(verified, agent)
