"""Sign-in during password guessing: throttling, known devices, and no disclosure of accounts."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.http.response import HttpResponseBase
from django.test import Client
from django.urls import reverse

from bonobot.accounts.attempt_limits import (
    SIGN_IN_ACCOUNT,
    SIGN_IN_ADDRESS,
    SIGN_IN_DEVICE,
    AttemptLimit,
    TooManyAttempts,
    charge_attempt,
)
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from tests import factories
from tests.admin_client import is_signed_in
from tests.bonobot.accounts.test_second_factor import PASSWORD, build_code, set_up_codes, sign_in
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db

DEVICE = "bonobot_device"


@pytest.fixture(autouse=True)
def _clear_attempts() -> Iterator[None]:
    """Clear the attempts: the cache outlives a test's rows."""
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)


def post_sign_in(
    client: Client, password: str = PASSWORD, name: str = "anna", address: str = "192.0.2.7"
) -> HttpResponseBase:
    values = {"username": name, "password": password}
    return client.post(reverse("admin:login"), values, REMOTE_ADDR=address)


def read_error(response: HttpResponseBase) -> tuple[str, str]:
    """Return the code and the message of a refused sign-in."""
    (error,) = response.context["form"].errors.as_data()["__all__"]  # type: ignore[attr-defined]
    return str(error.code), " ".join(map(str, error.messages))


def exhaust_attempts(limit: AttemptLimit = SIGN_IN_ACCOUNT, subject: str = "anna") -> None:
    """Count attempts until no more are allowed."""
    with suppress(TooManyAttempts):
        while True:
            charge_attempt(limit, subject)


def guess_password(name: str = "anna") -> None:
    """Guess from many addresses until the account is throttled."""
    codes = (
        read_error(post_sign_in(Client(), "wrong", name, f"198.51.100.{number}"))[0]
        for number in range(2 * SIGN_IN_ACCOUNT.burst)
    )
    assert "too_many_attempts" in codes


@pytest.mark.usefixtures("stopped_clock")
def test_a_known_device_can_sign_in_while_others_guess_passwords(anna: User) -> None:
    client = sign_in()
    client.get(reverse("admin:logout"))
    client.cookies.pop("bonobot_session")
    guess_password()
    assert read_error(post_sign_in(Client()))[0] == "too_many_attempts"
    # Not even a blocked address keeps it out: an attacker can share the address.
    exhaust_attempts(SIGN_IN_ADDRESS, "192.0.2.7")
    post_sign_in(client)
    assert is_signed_in(client)


@pytest.mark.usefixtures("stopped_clock")
def test_a_second_factor_can_be_entered_while_others_guess_passwords(anna: User) -> None:
    secret = set_up_codes(sign_in())
    exhaust_attempts()
    client = Client()
    assert read_error(post_sign_in(client, "wrong"))[0] == "too_many_attempts"
    assert post_sign_in(client)["Location"] == reverse("mfa_authenticate")
    assert not is_signed_in(client)
    client.post(reverse("mfa_authenticate"), {"code": build_code(secret, 1)})
    assert is_signed_in(client)


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("name", ["anna", "nobody"])
def test_a_throttled_response_doesnt_reveal_the_password_or_account(anna: User, name: str) -> None:
    exhaust_attempts(subject=name)
    responses = {
        read_error(post_sign_in(Client(), password, name)) for password in (PASSWORD, "wrong")
    }
    assert {code for code, _words in responses} == {"too_many_attempts"}
    assert len(responses) == 1


@pytest.mark.usefixtures("stopped_clock")
def test_a_known_device_is_known_only_for_its_account(acme: Organization, anna: User) -> None:
    factories.create_member(acme, Role.OWNER, "bert")
    client = sign_in()
    exhaust_attempts(subject="bert")
    assert read_error(post_sign_in(client, name="bert"))[0] == "too_many_attempts"


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("change", ["password", "forged", "inactive"])
def test_an_expired_known_device_is_limited_like_any_other(anna: User, change: str) -> None:
    client = sign_in()
    client.cookies.pop("bonobot_session")
    if change == "password":
        anna.set_password("another-long-one-for-tests")
    elif change == "inactive":
        anna.is_active = False
    else:
        client.cookies[DEVICE] = client.cookies[DEVICE].value[:-2] + "xx"
    anna.save()
    exhaust_attempts()
    answer = post_sign_in(
        client, "another-long-one-for-tests" if change == "password" else PASSWORD
    )
    assert read_error(answer)[0] == "too_many_attempts"


@pytest.mark.usefixtures("stopped_clock")
def test_a_known_device_has_no_more_attempts_than_any_other(anna: User) -> None:
    client = sign_in()
    codes = [read_error(post_sign_in(client, "wrong"))[0] for _ in range(SIGN_IN_DEVICE.burst + 1)]
    assert codes[0] == "invalid_login"
    assert codes[-1] == "too_many_attempts"


def test_the_device_cookie_doesnt_authenticate_and_is_http_only(anna: User) -> None:
    client = sign_in()
    assert client.cookies[DEVICE]["httponly"]
    client.cookies.pop("bonobot_session")
    assert not is_signed_in(client)
    assert read_error(post_sign_in(client, "wrong"))[0] == "invalid_login"


def test_the_session_before_a_sign_in_is_invalid_afterwards(anna: User) -> None:
    """Session fixation: the session key changes at sign-in."""
    client = Client()
    client.get(reverse("admin:login"))
    post_sign_in(client, "wrong")
    old_key = client.session.session_key
    post_sign_in(client)
    assert is_signed_in(client)
    assert client.cookies["bonobot_session"].value != old_key
