"""The second factor: setup, sign-in, recovery, reset, and organizations that require it."""

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
from tests.admin_client import is_signed_in
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db

PASSWORD = "pw-for-tests"


@pytest.fixture(autouse=True)
def _clear_attempts() -> Iterator[None]:
    """Clear used codes and attempts: the cache outlives a test's rows."""
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)


def build_code(secret: str, step: int = 0) -> str:
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30 + step))


def sign_in(name: str = "anna") -> Client:
    """Return a browser that entered the password, but no code yet."""
    client = Client()
    client.post(reverse("admin:login"), {"username": name, "password": PASSWORD})
    return client


def set_up_codes(client: Client) -> str:
    """Set up authenticator codes as a person does and return their secret."""
    again = client.get(reverse("mfa_activate_totp"))
    assert reverse("account_reauthenticate") in again["Location"]
    client.post(again["Location"], {"password": PASSWORD})
    page = client.get(reverse("mfa_activate_totp")).content.decode()
    assert "data:image/svg+xml;base64," in page
    secret = read_secret(page)
    with TestCase.captureOnCommitCallbacks(execute=True):
        response = client.post(reverse("mfa_activate_totp"), {"code": build_code(secret)})
    assert response.status_code == 302, response.content.decode()
    return secret


def read_secret(page: str) -> str:
    """Return the secret on the page that sets up an authenticator app."""
    match = re.search(r'id="authenticator_secret"[^>]*value="([A-Z2-7]+)"', page)
    assert match, page
    return match[1]


def test_authenticator_codes_are_set_up_and_required(anna: User) -> None:
    secret = set_up_codes(sign_in())
    assert has_second_factor(anna)
    assert AuditRow.objects.filter(action="second_factor_added", actor_label="anna").exists()
    client = sign_in()
    assert not is_signed_in(client)  # not signed in yet
    page = client.get(reverse("mfa_authenticate"))
    assert "Use a passkey" not in page.content.decode()  # anna has none
    assert page.status_code == 200
    client.post(reverse("mfa_authenticate"), {"code": "000000"})
    assert not is_signed_in(client)
    client.post(reverse("mfa_authenticate"), {"code": build_code(secret, 1)})
    assert is_signed_in(client)


def test_the_password_alone_is_refused_by_rest(anna: User) -> None:
    set_up_codes(sign_in())
    assert sign_in().get("/api/members").status_code in (401, 403)


def test_a_recovery_code_can_be_used_once(anna: User) -> None:
    client = sign_in()
    set_up_codes(client)
    page = client.get(reverse("mfa_view_recovery_codes")).content.decode()
    recovery_code = re.findall(r">(\d{8})\s", page)[0]
    for expected in (True, False):
        again = sign_in()
        again.post(reverse("mfa_authenticate"), {"code": recovery_code})
        assert is_signed_in(again) is expected


def test_the_secrets_of_a_second_factor_are_encrypted(anna: User) -> None:
    secret = set_up_codes(sign_in())
    rows = str(list(Authenticator.objects.values_list("data", flat=True)))
    assert secret not in rows
    assert FactorSecret.objects.count() == 2  # for authenticator codes and recovery codes
    assert FactorSecret.objects.filter(user=anna).exists()
    assert FactorSecret._meta.get_field("secret") in list_sealed_fields()


def test_setting_up_a_second_factor_ends_the_other_sessions(anna: User) -> None:
    other_client, own = sign_in(), sign_in()
    set_up_codes(own)
    assert is_signed_in(own)
    assert not is_signed_in(other_client)


def test_people_are_redirected_to_the_setup_if_a_second_factor_is_required(
    acme: Organization, anna: User
) -> None:
    Organization.objects.filter(pk=acme.pk).update(second_factor=True)
    client = sign_in()
    response = client.get(reverse("admin:agents_agent_changelist"), follow=True)
    assert response.redirect_chain[-1][0] == reverse("mfa_index")
    forbidden = client.get("/api/members")
    assert (forbidden.status_code, forbidden.json()["code"]) == (403, "second_factor_required")
    set_up_codes(client)
    assert client.get(reverse("admin:agents_agent_changelist")).status_code == 200
    assert client.get("/api/members").status_code == 200


def test_tokens_need_no_second_factor(acme: Organization) -> None:
    Organization.objects.filter(pk=acme.pk).update(second_factor=True)
    assert rest.as_role(acme, Role.OWNER).get("members").status == 200


def test_an_owner_resets_a_lost_second_factor(acme: Organization, anna: User) -> None:
    client = sign_in()
    set_up_codes(client)
    owner = build_user_principal(
        User.objects.get(pk=factories.create_member(acme, Role.OWNER, "bert").id), acme
    )
    reset_second_factor(owner, anna)
    assert not Authenticator.objects.exists()
    assert not FactorSecret.objects.exists()
    assert not is_signed_in(client)
    assert is_signed_in(sign_in())
    assert AuditRow.objects.filter(action="second_factor_reset", actor_label="bert").exists()
    member = Membership.objects.get(user=anna)
    rest_client = rest.as_role(acme, Role.OWNER)
    assert rest_client.delete(f"members/{member.pk}/second-factor").status == 204


def test_an_owner_cant_reset_the_factor_of_a_member_of_other_organizations(
    acme: Organization, anna: User
) -> None:
    other_organization = factories.create_organization("other")
    Membership.objects.create(organization=other_organization, user=anna, role=Role.MEMBER)
    owner = factories.create_member(acme, Role.OWNER, "bert")
    with pytest.raises(Forbidden):
        reset_second_factor(owner, anna)
    reset_second_factor(factories.build_administrator(acme), anna)


@pytest.mark.parametrize(
    "path", ["signup/", "email/", "password/reset/", "password/change/", "inactive/", "social/"]
)
def test_the_account_pages_of_the_library_are_disabled(path: str, anna: User) -> None:
    assert sign_in().get(f"/admin/account/{path}").status_code == 404


@pytest.mark.usefixtures("stopped_clock")
def test_password_attempts_are_limited(anna: User) -> None:
    client, guess = Client(), {"username": "anna", "password": "wrong"}
    responses = [client.post(reverse("admin:login"), guess) for _ in range(12)]
    codes = [response.context["form"].errors.as_data()["__all__"][0].code for response in responses]
    assert codes[0] == "invalid_login"
    assert codes[-1] == "too_many_attempts"
    client.post(reverse("admin:login"), guess | {"password": PASSWORD})
    assert not is_signed_in(client)


def test_an_authenticator_code_can_be_used_once(anna: User) -> None:
    secret = set_up_codes(sign_in())
    used = build_code(secret, 1)
    for expected in (True, False):
        client = sign_in()
        client.post(reverse("mfa_authenticate"), {"code": used})
        assert is_signed_in(client) is expected


@pytest.mark.usefixtures("stopped_clock")
def test_code_attempts_are_limited(anna: User) -> None:
    secret = set_up_codes(sign_in())
    client = sign_in()
    for guess in range(20):
        client.post(reverse("mfa_authenticate"), {"code": f"{guess:06}"})
    client.post(reverse("mfa_authenticate"), {"code": build_code(secret, 1)})
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
    set_up_codes(sign_in())
    client = sign_in()
    for response in (client.get(reverse(name)), client.post(reverse(name), {"password": PASSWORD})):
        assert response.status_code in (302, 403, 405), (name, response.status_code)
    assert not is_signed_in(client)
    assert has_second_factor(anna)


def test_codes_of_another_account_are_refused(acme: Organization, anna: User) -> None:
    factories.create_member(acme, Role.OWNER, "bert")
    bert = sign_in("bert")
    secret = set_up_codes(bert)
    page = bert.get(reverse("mfa_view_recovery_codes")).content.decode()
    recovery = re.findall(r">(\d{8})\s", page)[0]
    set_up_codes(sign_in())
    client = sign_in()
    for foreign in (build_code(secret, 1), recovery):
        client.post(reverse("mfa_authenticate"), {"code": foreign})
    assert not is_signed_in(client)
