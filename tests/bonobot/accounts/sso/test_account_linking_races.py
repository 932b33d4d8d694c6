"""What happens at the same time as a sign-in or the removal of an identity provider."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from bonobot.accounts.models import Identity, Membership, Organization, Provider, User
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import account_linking
from bonobot.accounts.sso import identity_providers as sso
from bonobot.accounts.sso.account_linking import resolve_user
from bonobot.accounts.sso.claims import ProviderUser
from bonobot.core.problems import Conflict
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)
ROLES = {"role_claim": "groups", "roles": {"ops": "operator", "bosses": "owner"}}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def create_linked_person(login: Provider, name: str, role: Role) -> Membership:
    user = User.objects.get(pk=factories.create_member(login.organization, role, name).id)
    Identity.objects.create(
        organization=login.organization, provider=login, user=user, subject=name, email=""
    )
    return Membership.objects.get(user=user)


def sign_in(login: Provider, name: str, *groups: str) -> None:
    resolve_user(login, ProviderUser(name, "", None, "", "", {"groups": [*groups]}))


@pytest.mark.parametrize(
    ("role", "groups", "expected"),
    [
        (Role.OWNER, ("ops",), "operator"),
        (Role.OPERATOR, ("bosses",), "owner"),
        (Role.OPERATOR, ("ops",), "operator"),
    ],
)
def test_the_role_follows_the_provider_at_each_sign_in(
    acme: Organization, role: Role, groups: tuple[str, ...], expected: str
) -> None:
    factories.create_member(acme, Role.OWNER, "head")
    login = factories.create_provider(acme, "https://id.example.com", **ROLES)
    member = create_linked_person(login, "anna", role)
    sign_in(login, "anna", *groups)
    member.refresh_from_db()
    assert member.role == expected


def test_the_last_owner_stays_owner_at_a_sign_in_with_a_lesser_role(acme: Organization) -> None:
    login = factories.create_provider(acme, "https://id.example.com", **ROLES)
    member = create_linked_person(login, "anna", Role.OWNER)
    sign_in(login, "anna", "ops")
    member.refresh_from_db()
    assert member.role == Role.OWNER


def test_a_person_who_becomes_the_last_owner_during_a_sign_in_stays_owner(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role that was read before the organization is locked isn't the current one."""
    login = factories.create_provider(acme, "https://id.example.com", **ROLES)
    member = create_linked_person(login, "anna", Role.REVIEWER)
    lock_row = account_linking.lock_row

    def promote_and_lock(row: Any) -> None:
        Membership.objects.filter(pk=member.pk).update(role=Role.OWNER)
        lock_row(row)

    monkeypatch.setattr(account_linking, "lock_row", promote_and_lock)
    sign_in(login, "anna", "ops")
    member.refresh_from_db()
    assert member.role == Role.OWNER


def disable(login: Provider) -> None:
    administrator = factories.build_administrator(login.organization)
    sso.update_provider(administrator, Provider.objects.get(pk=login.pk), enabled=False)


def delete(login: Provider) -> None:
    administrator = factories.build_administrator(login.organization)
    sso.delete_provider(administrator, Provider.objects.get(pk=login.pk))


@pytest.mark.parametrize(
    "removals",
    [(delete, delete), (disable, disable), (delete, disable)],
    ids=["deleted", "disabled", "deleted and disabled"],
)
def test_of_two_concurrent_removals_of_the_last_two_providers_one_succeeds(
    acme: Organization, removals: tuple[Callable[[Provider], None], ...]
) -> None:
    logins = [
        factories.create_provider(acme, f"https://{name}.example.com", name) for name in ("a", "b")
    ]
    Organization.objects.filter(pk=acme.pk).update(single_sign_on=True)
    start = threading.Barrier(len(logins))
    refusals: list[str] = []

    def run(removal: Callable[[Provider], None], login: Provider) -> None:
        start.wait()
        try:
            removal(login)
        except Conflict as conflict:
            refusals.append(conflict.code)
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=run, args=pair) for pair in zip(removals, logins, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == ["sso_required"]
    assert Provider.objects.enabled().filter(organization=acme).count() == 1
