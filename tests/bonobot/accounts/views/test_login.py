"""Signing in while somebody guesses: who is kept out, who still gets in, and what nobody learns."""

from collections.abc import Iterator

import pytest
from django.http.response import HttpResponseBase
from django.test import Client
from django.urls import reverse

from bonobot.accounts.attempt_limits import SIGN_IN_ACCOUNT, SIGN_IN_DEVICE
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from tests import factories
from tests.bonobot.accounts.test_second_factor import PASSWORD, code, set_up, signed_in
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db

DEVICE = "bonobot_device"


@pytest.fixture(autouse=True)
def _nothing_used() -> Iterator[None]:
    """Forget tries: the cache outlives a test's rows."""
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)


def sign_in(
    client: Client, password: str = PASSWORD, name: str = "anna", address: str = "192.0.2.7"
) -> HttpResponseBase:
    values = {"username": name, "password": password}
    return client.post(reverse("admin:login"), values, REMOTE_ADDR=address)


def refusal(answer: HttpResponseBase) -> tuple[str, str]:
    """Return the code and the words with which a sign-in was refused."""
    (error,) = answer.context["form"].errors.as_data()["__all__"]  # type: ignore[attr-defined]
    return str(error.code), " ".join(map(str, error.messages))


def guess(name: str = "anna") -> None:
    """Guess from many addresses until the account is throttled."""
    for number in range(SIGN_IN_ACCOUNT.burst + 1):
        sign_in(Client(), "wrong", name, f"198.51.100.{number}")


def is_in(client: Client) -> bool:
    return bool(client.get(reverse("admin:index")).status_code == 200)


def test_a_known_device_can_sign_in_while_others_guess_passwords(anna: User) -> None:
    client = signed_in()
    client.get(reverse("admin:logout"))
    client.cookies.pop("bonobot_session")
    guess()
    assert refusal(sign_in(Client()))[0] == "too_many_attempts"
    # Not even its address being blocked keeps it out: an attacker may sit behind the same one.
    for number in range(70):
        sign_in(Client(), "wrong", f"name-{number}")
    sign_in(client)
    assert is_in(client)


def test_a_second_factor_can_be_entered_while_others_guess_passwords(anna: User) -> None:
    secret = set_up(signed_in())
    guess()
    client = Client()
    assert refusal(sign_in(client, "wrong"))[0] == "too_many_attempts"
    assert sign_in(client)["Location"] == reverse("mfa_authenticate")
    assert not is_in(client)
    client.post(reverse("mfa_authenticate"), {"code": code(secret, 1)})
    assert is_in(client)


@pytest.mark.parametrize("name", ["anna", "nobody"])
def test_a_throttled_response_doesnt_reveal_the_password_or_account(anna: User, name: str) -> None:
    guess(name)
    answers = {refusal(sign_in(Client(), password, name)) for password in (PASSWORD, "wrong")}
    assert {code for code, _words in answers} == {"too_many_attempts"}
    assert len(answers) == 1


def test_a_known_device_is_known_only_for_its_account(acme: Organization, anna: User) -> None:
    factories.create_member(acme, Role.OWNER, "bert")
    client = signed_in()
    guess("bert")
    assert refusal(sign_in(client, name="bert"))[0] == "too_many_attempts"


@pytest.mark.parametrize("change", ["password", "forged", "inactive"])
def test_an_expired_known_device_is_limited_like_any_other(anna: User, change: str) -> None:
    client = signed_in()
    client.cookies.pop("bonobot_session")
    if change == "password":
        anna.set_password("another-long-one-for-tests")
    elif change == "inactive":
        anna.is_active = False
    else:
        client.cookies[DEVICE] = client.cookies[DEVICE].value[:-2] + "xx"
    anna.save()
    guess()
    answer = sign_in(client, "another-long-one-for-tests" if change == "password" else PASSWORD)
    assert refusal(answer)[0] == "too_many_attempts"


def test_a_known_device_has_no_more_attempts_than_any_other(anna: User) -> None:
    client = signed_in()
    codes = [refusal(sign_in(client, "wrong"))[0] for _ in range(SIGN_IN_DEVICE.burst + 1)]
    assert codes[0] == "invalid_login"
    assert codes[-1] == "too_many_attempts"


def test_the_device_cookie_doesnt_authenticate_and_is_http_only(anna: User) -> None:
    client = signed_in()
    assert client.cookies[DEVICE]["httponly"]
    client.cookies.pop("bonobot_session")
    assert not is_in(client)
    assert refusal(sign_in(client, "wrong"))[0] == "invalid_login"


def test_the_session_before_a_sign_in_is_invalid_afterwards(anna: User) -> None:
    """Session fixation: who planted a session's key doesn't share what becomes of it."""
    client = Client()
    client.get(reverse("admin:login"))
    sign_in(client, "wrong")
    planted = client.session.session_key
    sign_in(client)
    assert is_in(client)
    assert client.cookies["bonobot_session"].value != planted
