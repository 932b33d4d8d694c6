"""Sign-in with an OpenID provider that runs in its own process."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from allauth.mfa.models import Authenticator
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Attempts, Identity, Membership, Organization, Provider, User
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import identity_providers as sso
from bonobot.core.problems import Conflict
from bonobot.ledger.models import AuditRow
from tests import factories, rest
from tests.admin_client import is_signed_in
from tests.bonobot.accounts.sso.provider_process import (
    ANNA,
    PASSWORD,
    authorize,
    create_person,
    create_provider,
    open_link_page,
    read_authorization_request,
    read_code,
    run_provider,
    sign_in,
    sign_in_with_password,
)
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_provider() as address:
        yield address


@pytest.fixture(autouse=True)
def _reset_provider(url: str) -> Iterator[None]:
    clear_cache()
    httpx.post(f"{url}/say", json={})
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def login(acme: Organization, url: str) -> Provider:
    return create_provider(acme, url, creates=True)


def test_a_person_of_the_provider_joins_and_signs_in_again(login: Provider) -> None:
    client = Client()
    response = sign_in(client, login)
    assert (response.status_code, response["Location"]) == (302, reverse("admin:index"))
    assert is_signed_in(client)
    user = User.objects.get(email=ANNA)
    assert (user.get_full_name(), user.has_usable_password()) == ("Anna Ahrens", False)
    assert Membership.objects.get(user=user).role == Role.MEMBER
    sign_in(Client(), login, email="elsewhere@example.com")
    assert User.objects.filter(email=ANNA).count() == 1
    actions = list(
        AuditRow.objects.filter(resource_id=str(login.pk)).values_list("action", flat=True)
    )
    assert actions.count("signed_in") == 2
    assert {"member_joined_by_provider", "identity_linked"} <= set(actions)


LATER, BEFORE = int(time.time()) + 3_600, int(time.time()) - 3_600
FORGED: dict[str, dict[str, Any]] = {
    "another issuer": {"claims": {"iss": "https://login.example.com"}},
    "no issuer": {"claims": {"iss": None}},
    "another audience": {"claims": {"aud": "other"}},
    "several audiences, another authorized party": {
        "claims": {"aud": ["bonobot", "other"], "azp": "other"}
    },
    "several audiences, no authorized party": {"claims": {"aud": ["bonobot", "other"]}},
    "another authorized party": {"claims": {"azp": "other"}},
    "nonce of another sign-in": {"claims": {"nonce": "of-another"}},
    "no nonce": {"claims": {"nonce": None}},
    "nonce is a number": {"claims": {"nonce": 7}},
    "expired": {"claims": {"exp": BEFORE}},
    "no expiry": {"claims": {"exp": None}},
    "issued in the future": {"claims": {"iat": LATER}},
    "not valid yet": {"claims": {"nbf": LATER}},
    "no subject": {"claims": {"sub": None}},
    "empty subject": {"claims": {"sub": ""}},
    "unsigned": {"header": {"alg": "none"}},
    "signed with our own secret": {"header": {"alg": "HS256"}},
    "unknown key": {"header": {"kid": "unknown"}},
    "key of somebody else": {"stranger": True},
    "unknown critical header": {"header": {"crit": ["exp"]}},
    "response of another provider": {"answer": {"iss": "https://login.example.com"}},
    "response to another request": {"answer": {"state": "of-another"}},
}


def test_forged_id_tokens_are_refused(login: Provider) -> None:
    results = {}
    for name, overrides in FORGED.items():
        client = Client()
        response = sign_in(client, login, **overrides)
        results[name] = (response.status_code, read_code(response), is_signed_in(client))
    assert results == dict.fromkeys(FORGED, (403, "identity_rejected", False))
    assert not User.objects.filter(email=ANNA).exists()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not verified": ({"claims": {"email_verified": False}}, "sso_email_unverified"),
    "verified as a string": ({"claims": {"email_verified": "true"}}, "sso_email_unverified"),
    "not stated": ({"claims": {"email_verified": None}}, "sso_email_unverified"),
    "another domain": ({"claims": {"email": "anna@evil.example"}}, "sso_domain"),
    "subdomain": ({"claims": {"email": "a@x.example.com"}}, "sso_domain"),
    "refused by the provider": ({"answer": {"error": "access_denied"}}, "provider_denied"),
    "no code": ({"answer": {"code": ""}}, "provider_denied"),
}


def test_a_refused_person_sees_the_reason(login: Provider) -> None:
    results = {}
    for name, (overrides, _code) in REFUSED.items():
        client = Client()
        results[name] = (read_code(sign_in(client, login, **overrides)), is_signed_in(client))
    assert results == {name: (code, False) for name, (_overrides, code) in REFUSED.items()}


def test_refused_sign_ins_are_in_the_audit_log(login: Provider) -> None:
    sign_in(Client(), login, claims={"email_verified": False})
    row = AuditRow.objects.get(action="sign_in_rejected")
    assert (row.outcome, row.code) == ("refused", "sso_email_unverified")


def test_missing_claims_are_read_from_the_userinfo_endpoint(login: Provider) -> None:
    overrides = {"claims": {"email": None, "email_verified": None}}
    userinfo = {"sub": ANNA, "email": ANNA, "email_verified": True}
    assert read_code(sign_in(Client(), login, **overrides, userinfo=userinfo | {"sub": "eve"})) == (
        "identity_rejected"
    )
    client = Client()
    sign_in(client, login, **overrides, userinfo=userinfo)
    assert is_signed_in(client)


def test_an_unverified_address_is_accepted_only_from_a_trusted_provider(
    acme: Organization, url: str
) -> None:
    login = create_provider(acme, url, creates=True, trusts_email=True)
    client = Client()
    assert read_code(sign_in(client, login, claims={"email_verified": False})) != ""
    sign_in(client, login, claims={"email_verified": None})
    assert is_signed_in(client)


def test_unknown_people_are_refused_if_accounts_arent_created(acme: Organization, url: str) -> None:
    assert read_code(sign_in(Client(), create_provider(acme, url))) == "sso_unknown"


def test_a_sign_in_is_valid_once_in_one_browser_for_minutes(login: Provider) -> None:
    client = Client()
    callback = authorize(
        login.url,
        read_authorization_request(client, client.post(reverse("account_sso", args=[login.pk]))),
        ANNA,
    )
    assert read_code(Client().get(callback)) == "sign_in_expired"
    session = client.session
    session["single_sign_on_under_way"] |= {"until": time.time() - 1}
    session.save()
    assert read_code(client.get(callback)) == "sign_in_expired"
    assert not is_signed_in(client)
    sign_in(client, login)
    assert read_code(client.get(callback)) == "sign_in_expired"


def test_a_response_at_the_callback_of_another_organization_is_refused(
    login: Provider, url: str
) -> None:
    other_organization = factories.create_organization("other")
    client = Client()
    page = client.post(reverse("account_sso", args=[login.pk]))
    callback = authorize(login.url, read_authorization_request(client, page), ANNA)
    moved = callback.replace(str(login.organization_id), str(other_organization.pk))
    assert client.get(moved).status_code == 404
    assert not is_signed_in(client)


def test_a_member_is_matched_by_a_verified_email_address(acme: Organization, url: str) -> None:
    user, login, client = create_person(acme), create_provider(acme, url), Client()
    sign_in(client, login)
    assert Identity.objects.get().user == user
    assert is_signed_in(client)


def test_an_account_of_another_organization_isnt_matched_by_its_address(
    acme: Organization, url: str
) -> None:
    user = create_person(acme)
    other_organization = factories.create_organization("other")
    Membership.objects.create(organization=other_organization, user=user, role=Role.OWNER)
    login, client = create_provider(acme, url, creates=True), sign_in_with_password("anna")
    assert read_code(sign_in(Client(), login)) == "sso_link_first"
    page = open_link_page(client, login)
    client.get(authorize(login.url, read_authorization_request(client, page), ANNA))
    assert Identity.objects.get().user == user
    assert sign_in(Client(), login).status_code == 302


def test_a_person_links_and_unlinks_their_own_account(acme: Organization, url: str) -> None:
    user, login = create_person(acme), create_provider(acme, url)
    create_person(acme, name="bert")
    client, other_client = sign_in_with_password("anna"), sign_in_with_password("bert")
    for browser, expected in ((client, ""), (other_client, "sso_taken")):
        assert (
            reverse("account_reauthenticate")
            in browser.get(reverse("admin:profile_link", args=[login.pk]))["Location"]
        )
        page = open_link_page(browser, login)
        assert (
            read_code(
                browser.get(authorize(login.url, read_authorization_request(browser, page), ANNA))
            )
            == expected
        )
    identity = Identity.objects.get(user=user)
    other_client.post(reverse("admin:profile_unlink", args=[identity.pk]))
    assert Identity.objects.filter(pk=identity.pk).exists()
    client.post(reverse("admin:profile_unlink", args=[identity.pk]))
    assert not Identity.objects.exists()


def test_a_session_of_one_provider_cant_link_another(login: Provider, url: str) -> None:
    other_organization = factories.create_organization("other")
    other_login, client = create_provider(other_organization, url), Client()
    sign_in(client, login)
    Membership.objects.create(
        organization=other_organization, user=User.objects.get(email=ANNA), role=Role.OWNER
    )
    assert client.post(reverse("admin:profile_link", args=[other_login.pk])).status_code == 404
    assert client.post(reverse("admin:profile_link", args=[login.pk])).status_code == 200


def test_the_last_sign_in_method_cant_be_removed(login: Provider) -> None:
    client = Client()
    sign_in(client, login)
    client.post(reverse("admin:profile_unlink", args=[Identity.objects.get().pk]))
    assert Identity.objects.exists()


def test_removed_or_disabled_people_cant_sign_in(login: Provider) -> None:
    sign_in(Client(), login)
    user = User.objects.get(email=ANNA)
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert read_code(sign_in(Client(), login)) == "sso_not_a_member"
    User.objects.filter(pk=user.pk).update(is_active=True)
    Membership.objects.filter(user=user).delete()
    assert read_code(sign_in(Client(), login)) == "sso_not_a_member"


def test_a_provider_cant_grant_platform_administration(login: Provider) -> None:
    client = Client()
    sign_in(client, login)
    User.objects.filter(email=ANNA).update(is_superuser=True)
    assert not is_signed_in(client)
    assert read_code(sign_in(Client(), login)) == "sso_platform_administrator"


def test_a_session_reaches_only_the_organization_of_its_provider(login: Provider) -> None:
    client, other_organization = Client(), factories.create_organization("other")
    sign_in(client, login)
    Membership.objects.create(
        organization=other_organization, user=User.objects.get(email=ANNA), role=Role.OWNER
    )
    headers = {"Bonobot-Organization": "other"}
    assert client.get("/api/me").status_code == 200
    assert client.get("/api/me", headers=headers).status_code == 404
    client.post(reverse("admin:switch_organization"), {"to": "other"})
    assert client.get("/api/me").json()["organization"] == "acme"


def test_disabling_a_provider_ends_its_sessions(login: Provider) -> None:
    client = Client()
    sign_in(client, login)
    sso.update_provider(factories.build_administrator(login.organization), login, enabled=False)
    assert not is_signed_in(client)
    assert client.post(reverse("account_sso", args=[login.pk])).status_code == 404


def test_the_role_is_updated_from_the_claim(acme: Organization, url: str) -> None:
    roles = {"role_claim": "realm.groups", "roles": {"ops": "operator", "bosses": "owner"}}
    login = create_provider(acme, url, creates=True, role="", **roles)
    assert read_code(sign_in(Client(), login)) == "sso_no_role"
    for groups, role in ((["ops"], "operator"), (["ops", "bosses"], "owner"), (["ops"], "owner")):
        sign_in(Client(), login, claims={"realm": {"groups": groups}})
        assert Membership.objects.get(user__email=ANNA).role == role  # the last owner stays one
    create_person(acme, Role.OWNER, "bert")
    sign_in(Client(), login, claims={"realm": {"groups": ["ops"]}})
    assert Membership.objects.get(user__email=ANNA).role == "operator"


def test_the_providers_second_factor_is_accepted_or_ours_is_required(
    acme: Organization, login: Provider
) -> None:
    Organization.objects.filter(pk=acme.pk).update(second_factor=True)
    client = Client()
    sign_in(client, login)
    assert is_signed_in(client)
    sso.update_provider(factories.build_administrator(acme), login, second_factor=True)
    assert not is_signed_in(client)
    sign_in(client, login)
    response = client.get(reverse("admin:index"), follow=True)
    assert response.redirect_chain[-1][0] == reverse("mfa_index")
    Authenticator.objects.create(
        user=User.objects.get(email=ANNA), type=Authenticator.Type.TOTP, data={}
    )
    second_client = Client()
    assert sign_in(second_client, login)["Location"] == reverse("mfa_authenticate")
    assert not is_signed_in(second_client)


def test_passwords_are_refused_if_single_sign_on_is_required(acme: Organization, url: str) -> None:
    anna, login = create_person(acme, Role.OWNER), create_provider(acme, url)
    principal = build_user_principal(anna, acme)
    owner, data = rest.as_role(acme, Role.OWNER), {"single_sign_on": True}
    assert owner.patch("organization", data).code == "sso_not_tested"
    sign_in(Client(), login)
    assert owner.patch("organization", data).json["single_sign_on"] is True
    client = sign_in_with_password("anna")
    assert client.get(reverse("admin:index"), follow=True).redirect_chain[-1][0] == reverse(
        "account_sso_choose"
    )
    assert b"Login" in client.get(reverse("account_sso_choose")).content
    forbidden = client.get("/api/me")
    assert (forbidden.status_code, forbidden.json()["code"]) == (403, "single_sign_on_required")
    sign_in(client, login)
    assert is_signed_in(client)
    with pytest.raises(Conflict):
        sso.update_provider(principal, login, enabled=False)
    with pytest.raises(Conflict):
        sso.delete_provider(principal, login)


def test_the_host_can_enable_passwords_again(acme: Organization, url: str) -> None:
    create_person(acme, Role.OWNER)
    Organization.objects.filter(pk=acme.pk).update(single_sign_on=True)
    assert not is_signed_in(sign_in_with_password("anna"))
    call_command("org", "set", "--no-single-sign-on", "--org", acme.slug)
    assert is_signed_in(sign_in_with_password("anna"))


def test_the_sign_in_page_shows_only_announced_providers(acme: Organization, url: str) -> None:
    create_provider(acme, url, name="Shown")
    create_provider(acme, f"{url}/", name="Hidden", announced=False)
    page = Client().get(reverse("admin:login")).content.decode()
    assert "Shown" in page
    assert "Hidden" not in page


def test_only_local_urls_are_redirect_targets(login: Provider) -> None:
    for next_url, expected in (
        ("/admin/profile/", "/admin/profile/"),
        ("//evil.example/", reverse("admin:index")),
    ):
        client = Client()
        page = client.post(reverse("account_sso", args=[login.pk]), {"next": next_url})
        response = client.get(authorize(login.url, read_authorization_request(client, page), ANNA))
        assert response["Location"] == expected


def test_another_account_in_the_browser_is_signed_out(acme: Organization, login: Provider) -> None:
    create_person(acme, Role.OWNER, "bert")
    client = sign_in_with_password("bert")
    sign_in(client, login)
    assert client.get("/api/me").json()["person"]["email"] == ANNA


def test_an_unfinished_provider_sign_in_doesnt_limit_a_password_session(
    acme: Organization, login: Provider
) -> None:
    create_person(acme, Role.OWNER, "bert")
    client = Client()
    sign_in(client, login)
    client.post(reverse("admin:login"), {"username": "bert", "password": PASSWORD})
    assert client.get("/api/me").json()["name"] == "bert"


METADATA = (
    {"issuer": "https://login.example.com"},
    {"authorization_endpoint": None},
    {"token_endpoint": "javascript:alert(1)"},
)


def test_metadata_of_another_issuer_is_refused(login: Provider) -> None:
    for metadata in METADATA:
        httpx.post(f"{login.url}/say", json={"metadata": metadata})
        response = Client().post(reverse("account_sso", args=[login.pk]))
        assert (response.status_code, read_code(response)) == (503, "provider_unreachable")


@pytest.mark.usefixtures("stopped_clock")
def test_sign_in_attempts_are_limited(login: Provider) -> None:
    client = Client()
    codes = {read_code(client.get(reverse("account_sso", args=[login.pk]))) for _ in range(62)}
    assert codes == {"", "too_many_attempts"}
    Attempts.objects.all().delete()
