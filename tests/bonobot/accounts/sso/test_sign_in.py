"""Signing in by an OpenID provider, which runs here as a process of its own."""

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
from bonobot.accounts.sso import services as sso
from bonobot.core.problems import Conflict
from bonobot.ledger.models import AuditRow
from tests import factories, rest
from tests.bonobot.accounts.sso.provider_process import (
    ANNA,
    PASSWORD,
    by_password,
    code_of,
    is_in,
    led,
    let_in,
    person,
    running,
    sign_in,
    to_link,
    trust,
)
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_tried(url: str) -> Iterator[None]:
    clear_cache()
    httpx.post(f"{url}/say", json={})
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def login(acme: Organization, url: str) -> Provider:
    return trust(acme, url, creates=True)


def test_a_person_of_the_provider_joins_and_signs_in_again(login: Provider) -> None:
    client = Client()
    answer = sign_in(client, login)
    assert (answer.status_code, answer["Location"]) == (302, reverse("admin:index"))
    assert is_in(client)
    user = User.objects.get(email=ANNA)
    assert (user.get_full_name(), user.has_usable_password()) == ("Anna Ahrens", False)
    assert Membership.objects.get(user=user).role == Role.MEMBER
    sign_in(Client(), login, email="elsewhere@example.com")
    assert User.objects.filter(email=ANNA).count() == 1
    said = list(AuditRow.objects.filter(resource_id=str(login.pk)).values_list("action", flat=True))
    assert said.count("signed_in") == 2
    assert {"member_joined_by_provider", "identity_linked"} <= set(said)


LATER, BEFORE = int(time.time()) + 3_600, int(time.time()) - 3_600
FORGED: dict[str, dict[str, Any]] = {
    "of another issuer": {"claims": {"iss": "https://login.example.com"}},
    "of nobody": {"claims": {"iss": None}},
    "for another audience": {"claims": {"aud": "other"}},
    "for several, made for another": {"claims": {"aud": ["bonobot", "other"], "azp": "other"}},
    "for several, made for nobody": {"claims": {"aud": ["bonobot", "other"]}},
    "made for another party": {"claims": {"azp": "other"}},
    "of another sign-in": {"claims": {"nonce": "of-another"}},
    "without a nonce": {"claims": {"nonce": None}},
    "a nonce that is no text": {"claims": {"nonce": 7}},
    "expired": {"claims": {"exp": BEFORE}},
    "without an end": {"claims": {"exp": None}},
    "issued in the future": {"claims": {"iat": LATER}},
    "not yet good": {"claims": {"nbf": LATER}},
    "without a subject": {"claims": {"sub": None}},
    "a subject of nothing": {"claims": {"sub": ""}},
    "unsigned": {"header": {"alg": "none"}},
    "signed with our own secret": {"header": {"alg": "HS256"}},
    "by a key that isn't there": {"header": {"kid": "unknown"}},
    "by a stranger's key": {"stranger": True},
    "something to be understood": {"header": {"crit": ["exp"]}},
    "the answer of another provider": {"answer": {"iss": "https://login.example.com"}},
    "an answer to another question": {"answer": {"state": "of-another"}},
}


def test_forged_id_tokens_are_refused(login: Provider) -> None:
    found = {}
    for name, said in FORGED.items():
        client = Client()
        answer = sign_in(client, login, **said)
        found[name] = (answer.status_code, code_of(answer), is_in(client))
    assert found == dict.fromkeys(FORGED, (403, "identity_refused", False))
    assert not User.objects.filter(email=ANNA).exists()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not verified": ({"claims": {"email_verified": False}}, "sso_email_unverified"),
    "verified in words": ({"claims": {"email_verified": "true"}}, "sso_email_unverified"),
    "nothing said": ({"claims": {"email_verified": None}}, "sso_email_unverified"),
    "of another domain": ({"claims": {"email": "anna@evil.example"}}, "sso_domain"),
    "of a longer domain": ({"claims": {"email": "a@x.example.com"}}, "sso_domain"),
    "refused there": ({"answer": {"error": "access_denied"}}, "provider_refused"),
    "no code": ({"answer": {"code": ""}}, "provider_refused"),
}


def test_a_refused_person_sees_the_reason(login: Provider) -> None:
    found = {}
    for name, (said, _code) in REFUSED.items():
        client = Client()
        found[name] = (code_of(sign_in(client, login, **said)), is_in(client))
    assert found == {name: (code, False) for name, (_said, code) in REFUSED.items()}


def test_refused_sign_ins_are_in_the_audit_log(login: Provider) -> None:
    sign_in(Client(), login, claims={"email_verified": False})
    row = AuditRow.objects.get(action="sign_in_refused")
    assert (row.outcome, row.code) == ("refused", "sso_email_unverified")


def test_missing_claims_are_read_from_the_userinfo_endpoint(login: Provider) -> None:
    bare = {"claims": {"email": None, "email_verified": None}}
    theirs = {"sub": ANNA, "email": ANNA, "email_verified": True}
    assert code_of(sign_in(Client(), login, **bare, userinfo=theirs | {"sub": "eve"})) == (
        "identity_refused"
    )
    client = Client()
    sign_in(client, login, **bare, userinfo=theirs)
    assert is_in(client)


def test_an_unverified_address_is_accepted_only_from_a_trusted_provider(
    acme: Organization, url: str
) -> None:
    login = trust(acme, url, creates=True, trusts_email=True)
    client = Client()
    assert code_of(sign_in(client, login, claims={"email_verified": False})) != ""
    sign_in(client, login, claims={"email_verified": None})
    assert is_in(client)


def test_unknown_people_are_refused_if_accounts_arent_created(acme: Organization, url: str) -> None:
    assert code_of(sign_in(Client(), trust(acme, url))) == "sso_unknown"


def test_a_sign_in_is_valid_once_in_one_browser_for_minutes(login: Provider) -> None:
    client = Client()
    back = let_in(
        login.url, led(client, client.post(reverse("account_sso", args=[login.pk]))), ANNA
    )
    assert code_of(Client().get(back)) == "sign_in_lost"
    session = client.session
    session["single_sign_on_under_way"] |= {"until": time.time() - 1}
    session.save()
    assert code_of(client.get(back)) == "sign_in_lost"
    assert not is_in(client)
    sign_in(client, login)
    assert code_of(client.get(back)) == "sign_in_lost"


def test_a_response_at_the_callback_of_another_organization_is_refused(
    login: Provider, url: str
) -> None:
    other = factories.create_organization("other")
    client = Client()
    page = client.post(reverse("account_sso", args=[login.pk]))
    back = let_in(login.url, led(client, page), ANNA)
    moved = back.replace(str(login.organization_id), str(other.pk))
    assert client.get(moved).status_code == 404
    assert not is_in(client)


def test_a_member_is_matched_by_a_verified_email_address(acme: Organization, url: str) -> None:
    user, login, client = person(acme), trust(acme, url), Client()
    sign_in(client, login)
    assert Identity.objects.get().user == user
    assert is_in(client)


def test_an_account_of_another_organization_isnt_matched_by_its_address(
    acme: Organization, url: str
) -> None:
    user = person(acme)
    other = factories.create_organization("other")
    Membership.objects.create(organization=other, user=user, role=Role.OWNER)
    login, client = trust(acme, url, creates=True), by_password("anna")
    assert code_of(sign_in(Client(), login)) == "sso_link_first"
    page = to_link(client, login)
    client.get(let_in(login.url, led(client, page), ANNA))
    assert Identity.objects.get().user == user
    assert sign_in(Client(), login).status_code == 302


def test_a_person_links_and_unlinks_their_own_account(acme: Organization, url: str) -> None:
    user, login = person(acme), trust(acme, url)
    person(acme, name="bert")
    client, other = by_password("anna"), by_password("bert")
    for browser, expected in ((client, ""), (other, "sso_taken")):
        assert (
            reverse("account_reauthenticate")
            in browser.get(reverse("admin:profile_link", args=[login.pk]))["Location"]
        )
        page = to_link(browser, login)
        assert code_of(browser.get(let_in(login.url, led(browser, page), ANNA))) == expected
    own = Identity.objects.get(user=user)
    other.post(reverse("admin:profile_unlink", args=[own.pk]))
    assert Identity.objects.filter(pk=own.pk).exists()
    client.post(reverse("admin:profile_unlink", args=[own.pk]))
    assert not Identity.objects.exists()


def test_a_session_of_one_provider_cant_link_another(login: Provider, url: str) -> None:
    other = factories.create_organization("other")
    theirs, client = trust(other, url), Client()
    sign_in(client, login)
    Membership.objects.create(
        organization=other, user=User.objects.get(email=ANNA), role=Role.OWNER
    )
    assert client.post(reverse("admin:profile_link", args=[theirs.pk])).status_code == 404
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
    assert code_of(sign_in(Client(), login)) == "sso_not_a_member"
    User.objects.filter(pk=user.pk).update(is_active=True)
    Membership.objects.filter(user=user).delete()
    assert code_of(sign_in(Client(), login)) == "sso_not_a_member"


def test_a_provider_cant_grant_platform_administration(login: Provider) -> None:
    client = Client()
    sign_in(client, login)
    User.objects.filter(email=ANNA).update(is_superuser=True)
    assert client.get(reverse("admin:index")).status_code == 302
    assert code_of(sign_in(Client(), login)) == "sso_platform_administrator"


def test_a_session_reaches_only_the_organization_of_its_provider(login: Provider) -> None:
    client, other = Client(), factories.create_organization("other")
    sign_in(client, login)
    Membership.objects.create(
        organization=other, user=User.objects.get(email=ANNA), role=Role.OWNER
    )
    there = {"Bonobot-Organization": "other"}
    assert client.get("/api/me").status_code == 200
    assert client.get("/api/me", headers=there).status_code == 404
    client.post(reverse("admin:switch_organization"), {"to": "other"})
    assert client.get("/api/me").json()["organization"] == "acme"


def test_disabling_a_provider_ends_its_sessions(login: Provider) -> None:
    client = Client()
    sign_in(client, login)
    sso.update_provider(factories.build_administrator(login.organization), login, enabled=False)
    assert not is_in(client)
    assert client.post(reverse("account_sso", args=[login.pk])).status_code == 404


def test_the_role_is_updated_from_the_claim(acme: Organization, url: str) -> None:
    roles = {"role_claim": "realm.groups", "roles": {"ops": "operator", "bosses": "owner"}}
    login = trust(acme, url, creates=True, role="", **roles)
    assert code_of(sign_in(Client(), login)) == "sso_no_role"
    for groups, role in ((["ops"], "operator"), (["ops", "bosses"], "owner"), (["ops"], "owner")):
        sign_in(Client(), login, claims={"realm": {"groups": groups}})
        assert Membership.objects.get(user__email=ANNA).role == role  # the last owner stays one
    person(acme, Role.OWNER, "bert")
    sign_in(Client(), login, claims={"realm": {"groups": ["ops"]}})
    assert Membership.objects.get(user__email=ANNA).role == "operator"


def test_the_providers_second_factor_is_accepted_or_ours_is_required(
    acme: Organization, login: Provider
) -> None:
    Organization.objects.filter(pk=acme.pk).update(second_factor=True)
    client = Client()
    sign_in(client, login)
    assert is_in(client)
    sso.update_provider(factories.build_administrator(acme), login, second_factor=True)
    assert not is_in(client)
    sign_in(client, login)
    answer = client.get(reverse("admin:index"), follow=True)
    assert answer.redirect_chain[-1][0] == reverse("mfa_index")
    Authenticator.objects.create(
        user=User.objects.get(email=ANNA), type=Authenticator.Type.TOTP, data={}
    )
    again = Client()
    assert sign_in(again, login)["Location"] == reverse("mfa_authenticate")
    assert not is_in(again)


def test_passwords_are_refused_if_single_sign_on_is_required(acme: Organization, url: str) -> None:
    anna, login = person(acme, Role.OWNER), trust(acme, url)
    boss = build_user_principal(anna, acme)
    owner, asked = rest.as_role(acme, Role.OWNER), {"single_sign_on": True}
    assert owner.patch("organization", asked).code == "sso_untried"
    sign_in(Client(), login)
    assert owner.patch("organization", asked).json["single_sign_on"] is True
    client = by_password("anna")
    assert client.get(reverse("admin:index"), follow=True).redirect_chain[-1][0] == reverse(
        "account_sso_choose"
    )
    assert b"Login" in client.get(reverse("account_sso_choose")).content
    refused = client.get("/api/me")
    assert (refused.status_code, refused.json()["code"]) == (403, "single_sign_on_required")
    sign_in(client, login)
    assert is_in(client)
    with pytest.raises(Conflict):
        sso.update_provider(boss, login, enabled=False)
    with pytest.raises(Conflict):
        sso.delete_provider(boss, login)


def test_the_host_can_enable_passwords_again(acme: Organization, url: str) -> None:
    person(acme, Role.OWNER)
    Organization.objects.filter(pk=acme.pk).update(single_sign_on=True)
    assert not is_in(by_password("anna"))
    call_command("org", "set", "--no-single-sign-on", "--org", acme.slug)
    assert is_in(by_password("anna"))


def test_the_sign_in_page_shows_only_announced_providers(acme: Organization, url: str) -> None:
    trust(acme, url, name="Shown")
    trust(acme, f"{url}/", name="Hidden", announced=False)
    page = Client().get(reverse("admin:login")).content.decode()
    assert "Shown" in page
    assert "Hidden" not in page


def test_only_local_urls_are_redirect_targets(login: Provider) -> None:
    for onward, expected in (
        ("/admin/profile/", "/admin/profile/"),
        ("//evil.example/", reverse("admin:index")),
    ):
        client = Client()
        page = client.post(reverse("account_sso", args=[login.pk]), {"next": onward})
        answer = client.get(let_in(login.url, led(client, page), ANNA))
        assert answer["Location"] == expected


def test_another_account_in_the_browser_is_signed_out(acme: Organization, login: Provider) -> None:
    person(acme, Role.OWNER, "bert")
    client = by_password("bert")
    sign_in(client, login)
    assert client.get("/api/me").json()["person"]["email"] == ANNA


def test_an_unfinished_provider_sign_in_doesnt_limit_a_password_session(
    acme: Organization, login: Provider
) -> None:
    person(acme, Role.OWNER, "bert")
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
        answer = Client().post(reverse("account_sso", args=[login.pk]))
        assert (answer.status_code, code_of(answer)) == (503, "provider_unreachable")


def test_sign_in_attempts_are_limited(login: Provider) -> None:
    client = Client()
    codes = {code_of(client.get(reverse("account_sso", args=[login.pk]))) for _ in range(62)}
    assert codes == {"", "too_many_attempts"}
    Attempts.objects.all().delete()
