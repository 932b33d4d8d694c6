"""The second factor: setting it up, being asked for it, losing it; where everybody needs one."""

import re
import time
from collections.abc import Iterator

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.test import Client, TestCase
from django.urls import reverse

from bonobot.accounts.models import FactorSecret, Membership, Organization, User
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.second_factor import has_second_factor, reset_second_factor
from bonobot.core.crypto.encrypted_fields import list_sealed_fields
from bonobot.core.problems import Forbidden
from bonobot.ledger.models import AuditRow
from tests import factories, rest
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db

PASSWORD = "pw-for-tests"  # as the cast has it


@pytest.fixture(autouse=True)
def _nothing_used() -> Iterator[None]:
    """Forget codes that were used, and tries: the cache outlives a test's rows."""
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)


def code(secret: str, step: int = 0) -> str:
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30 + step))


def signed_in(name: str = "anna") -> Client:
    """Return a browser that gave its password; what comes next is for the test."""
    client = Client()
    client.post(reverse("admin:login"), {"username": name, "password": PASSWORD})
    return client


def set_up(client: Client) -> str:
    """Set up one-time codes as a person does and return their secret."""
    again = client.get(reverse("mfa_activate_totp"))
    assert reverse("account_reauthenticate") in again["Location"]
    client.post(again["Location"], {"password": PASSWORD})
    page = client.get(reverse("mfa_activate_totp")).content.decode()
    assert "data:image/svg+xml;base64," in page
    found = re.search(r'id="authenticator_secret"[^>]*value="([A-Z2-7]+)"', page)
    assert found, page
    with TestCase.captureOnCommitCallbacks(execute=True):
        answer = client.post(reverse("mfa_activate_totp"), {"code": code(found[1])})
    assert answer.status_code == 302, answer.content.decode()
    return found[1]


def test_authenticator_codes_are_set_up_and_required(anna: User) -> None:
    secret = set_up(signed_in())
    assert has_second_factor(anna)
    assert AuditRow.objects.filter(action="second_factor_added", actor_label="anna").exists()
    client = signed_in()
    assert client.get(reverse("admin:index")).status_code == 302  # not in yet
    page = client.get(reverse("mfa_authenticate"))
    assert page.status_code == 200
    client.post(reverse("mfa_authenticate"), {"code": "000000"})
    assert client.get(reverse("admin:index")).status_code == 302
    client.post(reverse("mfa_authenticate"), {"code": code(secret, 1)})
    assert client.get(reverse("admin:index")).status_code == 200


def test_the_password_alone_is_refused_by_rest(anna: User) -> None:
    set_up(signed_in())
    assert signed_in().get("/api/members").status_code in (401, 403)


def test_a_recovery_code_can_be_used_once(anna: User) -> None:
    client = signed_in()
    set_up(client)
    page = client.get(reverse("mfa_view_recovery_codes")).content.decode()
    one = re.findall(r">(\d{8})\s", page)[0]
    for expected in (200, 302):
        again = signed_in()
        again.post(reverse("mfa_authenticate"), {"code": one})
        assert again.get(reverse("admin:index")).status_code == expected


def test_the_secrets_of_a_second_factor_are_encrypted(anna: User) -> None:
    secret = set_up(signed_in())
    rows = str(list(Authenticator.objects.values_list("data", flat=True)))
    assert secret not in rows
    assert FactorSecret.objects.count() == 2  # of the codes, and of the recovery codes
    assert FactorSecret.objects.filter(user=anna).exists()
    assert FactorSecret._meta.get_field("secret") in list_sealed_fields()


def test_setting_up_a_second_factor_ends_the_other_sessions(anna: User) -> None:
    other, own = signed_in(), signed_in()
    set_up(own)
    assert own.get(reverse("admin:index")).status_code == 200
    assert other.get(reverse("admin:index")).status_code == 302


def test_people_are_redirected_to_the_setup_if_a_second_factor_is_required(
    acme: Organization, anna: User
) -> None:
    Organization.objects.filter(pk=acme.pk).update(second_factor=True)
    client = signed_in()
    answer = client.get(reverse("admin:agents_agent_changelist"), follow=True)
    assert answer.redirect_chain[-1][0] == reverse("mfa_index")
    refused = client.get("/api/members")
    assert (refused.status_code, refused.json()["code"]) == (403, "second_factor_required")
    set_up(client)
    assert client.get(reverse("admin:agents_agent_changelist")).status_code == 200
    assert client.get("/api/members").status_code == 200


def test_tokens_need_no_second_factor(acme: Organization) -> None:
    Organization.objects.filter(pk=acme.pk).update(second_factor=True)
    assert rest.as_role(acme, Role.OWNER).get("members").status == 200


def test_an_owner_resets_a_lost_second_factor(acme: Organization, anna: User) -> None:
    client = signed_in()
    set_up(client)
    boss = build_user_principal(
        User.objects.get(pk=factories.create_member(acme, Role.OWNER, "bert").id), acme
    )
    reset_second_factor(boss, anna)
    assert not Authenticator.objects.exists()
    assert not FactorSecret.objects.exists()
    assert client.get(reverse("admin:index")).status_code == 302
    assert signed_in().get(reverse("admin:index")).status_code == 200
    assert AuditRow.objects.filter(action="second_factor_reset", actor_label="bert").exists()
    member = Membership.objects.get(user=anna)
    over_rest = rest.as_role(acme, Role.OWNER)
    assert over_rest.delete(f"members/{member.pk}/second-factor").status == 204


def test_an_owner_cant_reset_the_factor_of_a_member_of_other_organizations(
    acme: Organization, anna: User
) -> None:
    other = factories.create_organization("other")
    Membership.objects.create(organization=other, user=anna, role=Role.MEMBER)
    boss = factories.create_member(acme, Role.OWNER, "bert")
    with pytest.raises(Forbidden):
        reset_second_factor(boss, anna)
    reset_second_factor(factories.build_administrator(acme), anna)


@pytest.mark.parametrize(
    "path", ["signup/", "email/", "password/reset/", "password/change/", "inactive/", "social/"]
)
def test_the_account_pages_of_the_library_are_disabled(path: str, anna: User) -> None:
    assert signed_in().get(f"/admin/account/{path}").status_code == 404


def test_password_attempts_are_limited(anna: User) -> None:
    client, guess = Client(), {"username": "anna", "password": "wrong"}
    answers = [client.post(reverse("admin:login"), guess) for _ in range(12)]
    codes = [one.context["form"].errors.as_data()["__all__"][0].code for one in answers]
    assert codes[0] == "invalid_login"
    assert codes[-1] == "too_many_attempts"
    client.post(reverse("admin:login"), guess | {"password": PASSWORD})
    assert client.get(reverse("admin:index")).status_code == 302


def test_an_authenticator_code_can_be_used_once(anna: User) -> None:
    secret = set_up(signed_in())
    used = code(secret, 1)
    for expected in (200, 302):
        client = signed_in()
        client.post(reverse("mfa_authenticate"), {"code": used})
        assert client.get(reverse("admin:index")).status_code == expected


def test_code_attempts_are_limited(anna: User) -> None:
    secret = set_up(signed_in())
    client = signed_in()
    for guess in range(20):
        client.post(reverse("mfa_authenticate"), {"code": f"{guess:06}"})
    client.post(reverse("mfa_authenticate"), {"code": code(secret, 1)})
    assert client.get(reverse("admin:index")).status_code != 200


@pytest.mark.parametrize(
    "name",
    [
        *("admin:index", "mfa_index", "mfa_activate_totp", "mfa_deactivate_totp"),
        *("mfa_view_recovery_codes", "mfa_generate_recovery_codes", "mfa_add_webauthn"),
        *("account_reauthenticate", "mfa_reauthenticate"),
    ],
)
def test_no_page_opens_before_the_second_factor(anna: User, name: str) -> None:
    set_up(signed_in())
    client = signed_in()
    for answer in (client.get(reverse(name)), client.post(reverse(name), {"password": PASSWORD})):
        assert answer.status_code in (302, 403, 405), (name, answer.status_code)
    assert client.get(reverse("admin:index")).status_code == 302
    assert has_second_factor(anna)


def test_codes_of_another_account_are_refused(acme: Organization, anna: User) -> None:
    factories.create_member(acme, Role.OWNER, "bert")
    bert = signed_in("bert")
    secret = set_up(bert)
    page = bert.get(reverse("mfa_view_recovery_codes")).content.decode()
    recovery = re.findall(r">(\d{8})\s", page)[0]
    set_up(signed_in())
    client = signed_in()
    for foreign in (code(secret, 1), recovery):
        client.post(reverse("mfa_authenticate"), {"code": foreign})
    assert client.get(reverse("admin:index")).status_code == 302
