"""Attacks on the pages of second factors: no recent sign-in, cloned keys, concurrent changes."""

import json
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from itertools import product
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.urls import urlpatterns
from django.db import connections, transaction
from django.db.models.signals import pre_save
from django.test import Client
from django.urls import URLPattern, URLResolver, reverse

from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from tests import factories
from tests.bonobot.accounts.software_passkey import SecurityKey
from tests.bonobot.accounts.test_second_factor import PASSWORD, build_code, set_up_codes
from tests.bonobot.accounts.test_second_factor_passkey_attacks import (
    ADD,
    ASK,
    add_key,
    post_assertion,
    read_options,
    sign_in,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("over_tls")]


# -- pages that change or show factors need a recent sign-in ---------------------------------------

WITHOUT_RECENT_SIGN_IN = {
    "mfa_index": 200,  # the list of factors
    "mfa_list_webauthn": 200,  # the names of passkeys
    "mfa_authenticate": 302,  # for a sign-in in progress only
    "mfa_reauthenticate": 200,
    "mfa_reauthenticate_webauthn": 200,
}


def list_url_names(patterns: list[URLPattern | URLResolver]) -> list[str]:
    names: list[str] = []
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            names += list_url_names(pattern.url_patterns)
        elif pattern.name:
            names.append(pattern.name)
    return names


URL_NAMES = sorted(list_url_names(urlpatterns))


def sign_in_with_passkey(key: SecurityKey) -> Client:
    client = sign_in()
    assert post_assertion(client, key.answer(read_options(client, ASK)))
    return client


def build_path(name: str) -> str:
    key = Authenticator.objects.get(type=Authenticator.Type.WEBAUTHN)
    has_key = name in ("mfa_remove_webauthn", "mfa_edit_webauthn")
    return reverse(name, args=[key.pk] if has_key else [])


def test_a_page_of_second_factors_needs_a_recent_sign_in(anna: User, settings: Any) -> None:
    key = SecurityKey()
    add_key(key)
    set_up_codes(sign_in_with_passkey(key))
    cookies = sign_in_with_passkey(key).cookies
    settings.ACCOUNT_REAUTHENTICATION_TIMEOUT = -1
    for name, method in product(URL_NAMES, ("get", "post")):
        client = Client()
        client.cookies = copy(cookies)
        with transaction.atomic():
            check_recent_sign_in_is_needed(client, name, method)
            transaction.set_rollback(True)


def check_recent_sign_in_is_needed(client: Client, name: str, method: str) -> None:
    """Send a request to a page; fail if it changes or shows a factor, or asks for no sign-in."""
    before = list(Authenticator.objects.order_by("pk").values())
    response = getattr(client, method)(build_path(name), secure=True)
    assert list(Authenticator.objects.order_by("pk").values()) == before, (name, method)
    if method == "get" and (status := WITHOUT_RECENT_SIGN_IN.get(name)):
        assert response.status_code == status, name
        codes = re.findall(r"\b\d{8}\b", response.content.decode())
        assert not codes, name
    elif name not in WITHOUT_RECENT_SIGN_IN and response.status_code != 405:
        assert response.status_code == 302, (name, method)
        location = response["Location"]
        assert "reauthenticate" in location or "again" in location, (name, method, location)


def test_nobody_signs_in_with_a_passkey_alone() -> None:
    assert not {"mfa_login_webauthn", "mfa_signup_webauthn", "mfa_trust"} & set(URL_NAMES)


# -- passkeys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 4], ids=["zero", "the used count", "a lower count"])
def test_a_passkey_whose_sign_count_goes_back_is_refused(anna: User, count: int) -> None:
    """A clone of the key continues with an older count (WebAuthn, section 6.1.1)."""
    key = SecurityKey()
    add_key(key)
    key.count = 4
    client = sign_in()
    assert post_assertion(client, key.answer(read_options(client, ASK)))
    key.count = {0: -1, 1: 4, 4: 3}[count]
    client = sign_in()
    assert not post_assertion(client, key.answer(read_options(client, ASK)))
    key.count = 5
    client = sign_in()
    assert post_assertion(client, key.answer(read_options(client, ASK)))


def test_a_cloned_passkey_doesnt_count_as_a_recent_sign_in(anna: User) -> None:
    key = SecurityKey()
    add_key(key)
    key.count = 4
    client = sign_in()
    assert post_assertion(client, key.answer(read_options(client, ASK)))
    key.count = 2
    name = "mfa_reauthenticate_webauthn"
    client.post(reverse(name), {"credential": key.answer(read_options(client, name))}, secure=True)
    assert Authenticator.objects.get(type="webauthn").data["sign_count"] == 5


def test_a_passkey_without_a_sign_count_signs_in_each_time(anna: User) -> None:
    key = SecurityKey()
    add_key(key)
    for _ in range(2):
        key.count = -1  # a passkey that is synchronized between devices always sends 0
        client = sign_in()
        assert post_assertion(client, key.answer(read_options(client, ASK)))


def from_other_origin(key: SecurityKey, options: dict[str, Any]) -> str:
    key.origin = "https://testserver.evil.example"
    return key.register(options)


def from_http(key: SecurityKey, options: dict[str, Any]) -> str:
    key.origin = "http://testserver"
    return key.register(options)


def for_other_rp(key: SecurityKey, options: dict[str, Any]) -> str:
    key.rp = "evil.example"
    return key.register(options)


def for_other_challenge(key: SecurityKey, options: dict[str, Any]) -> str:
    return key.register({"publicKey": {"challenge": "A" * 43}})


def as_assertion(key: SecurityKey, options: dict[str, Any]) -> str:
    return key.answer(options)


def without_attestation(key: SecurityKey, options: dict[str, Any]) -> str:
    return json.dumps(json.loads(key.register(options)) | {"response": {}})


def not_an_object(key: SecurityKey, options: dict[str, Any]) -> str:
    return "[]"


FORGED = (from_other_origin, from_http, for_other_rp, for_other_challenge, as_assertion)


def open_registration(name: str = "anna") -> Client:
    client = sign_in(name)
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD}, secure=True)
    return client


@pytest.mark.parametrize("build_credential", [*FORGED, without_attestation, not_an_object])
def test_a_forged_registration_is_refused(
    anna: User, build_credential: Callable[[SecurityKey, dict[str, Any]], str]
) -> None:
    client = open_registration()
    credential = build_credential(SecurityKey(), read_options(client, ADD))
    response = client.post(reverse(ADD), {"credential": credential}, secure=True)
    assert response.status_code == 200
    assert not Authenticator.objects.exists()


def test_a_registration_is_valid_once_and_for_one_account(anna: User) -> None:
    factories.create_member(Organization.objects.get(), Role.MEMBER, "eve")
    client, eve = open_registration(), open_registration("eve")
    key = SecurityKey()
    credential = key.register(read_options(client, ADD))
    read_options(eve, ADD)
    eve.post(reverse(ADD), {"credential": credential}, secure=True)
    assert not Authenticator.objects.exists()
    client.post(reverse(ADD), {"credential": credential}, secure=True)
    client.post(reverse(ADD), {"credential": credential}, secure=True)
    assert Authenticator.objects.filter(type="webauthn", user=anna).count() == 1


def test_the_credential_of_another_account_cant_be_registered(anna: User) -> None:
    """WebAuthn, section 7.1: a credential ID belongs to one account."""
    factories.create_member(Organization.objects.get(), Role.MEMBER, "eve")
    key, forged_key = SecurityKey(), SecurityKey()
    add_key(key)
    forged_key.id = key.id
    eve = open_registration("eve")
    credential = forged_key.register(read_options(eve, ADD))
    assert eve.post(reverse(ADD), {"credential": credential}, secure=True).status_code == 200
    assert Authenticator.objects.filter(type="webauthn").count() == 1


# -- recovery codes --------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["mfa_view_recovery_codes", "mfa_download_recovery_codes"])
def test_a_code_that_is_used_while_the_codes_are_viewed_stays_used(anna: User, name: str) -> None:
    client = sign_in()
    set_up_codes(client)
    codes = Authenticator.objects.get(type="recovery_codes")
    code = codes.wrap().get_unused_codes()[0]
    with ThreadPoolExecutor(1) as threads:
        uses: list[Future[bool]] = []

        def use_code() -> bool:
            try:
                return bool(Authenticator.objects.get(pk=codes.pk).wrap().validate_code(code))
            finally:
                connections.close_all()

        def use_code_before_save(instance: Authenticator, **_: Any) -> None:
            if instance.pk == codes.pk and not uses:
                uses.append(threads.submit(use_code))
                wait_until_done_or_blocked(uses[0])

        pre_save.connect(use_code_before_save, Authenticator)
        try:
            assert client.get(reverse(name), secure=True).status_code == 200
        finally:
            pre_save.disconnect(use_code_before_save, Authenticator)
        assert uses[0].result(10)
    codes.refresh_from_db()
    assert code not in codes.wrap().get_unused_codes()


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["recovery_codes", "totp"])
def test_a_factor_that_is_removed_while_its_code_is_checked_is_refused(
    anna: User, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    secret = set_up_codes(sign_in())
    factor = Authenticator.objects.get(type=kind)
    code = build_code(secret, 1) if kind == "totp" else factor.wrap().get_unused_codes()[0]
    wrapper = type(factor.wrap())
    validate_code = wrapper.validate_code

    def remove_and_validate(self: Any, text: str) -> bool:
        if kind == "recovery_codes":
            Authenticator.objects.filter(pk=factor.pk).delete()
            return bool(validate_code(self, text))
        is_valid = validate_code(self, text)
        Authenticator.objects.filter(pk=factor.pk).delete()
        return bool(is_valid)

    monkeypatch.setattr(wrapper, "validate_code", remove_and_validate)
    client = sign_in()
    response = client.post(reverse("mfa_authenticate"), {"code": code}, secure=True)
    assert response.status_code == 200
    assert client.get(reverse("admin:index"), secure=True).status_code == 302


def wait_until_done_or_blocked(use: Future[bool]) -> None:
    with suppress(TimeoutError):  # it waits for the page's transaction
        use.result(1)
