"""Attacks on passwords, second factors and resets."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.core import mail
from django.db import connection
from django.test import Client, TestCase
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from time_machine import travel

from bonobot.accounts import tasks as account_tasks
from bonobot.accounts.models import Attempts, Organization, User
from bonobot.accounts.password_reset import build_reset_link
from bonobot.accounts.roles import Role
from bonobot.accounts.second_factor import has_second_factor, reset_second_factor
from bonobot.core.problems import Forbidden
from tests import factories
from tests.admin_client import is_signed_in
from tests.bonobot.accounts.test_second_factor import PASSWORD, build_code, set_up_codes, sign_in
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db

EMAIL, NEW = "anna@example.com", "another-long-one-for-tests"


@pytest.fixture(autouse=True)
def _clear_attempts() -> Iterator[None]:
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    user = User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)
    user.email = EMAIL
    user.save()
    return user


def send_password_resets_now(accounts: list[str]) -> None:
    account_tasks.send_password_resets(accounts)
    account_tasks.send_due_account_emails()


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a mail server and run its jobs immediately."""
    monkeypatch.setattr(settings, "BONOBOT_EMAIL_URL", "smtp://mail.example.com")
    monkeypatch.setattr(account_tasks.send_password_resets, "delay", send_password_resets_now)


@pytest.fixture
def hashed_passwords(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of all passwords that are hashed."""
    passwords: list[str] = []
    encode = PBKDF2PasswordHasher.encode

    def record_and_encode(self: Any, password: str, *args: Any, **kwargs: Any) -> str:
        passwords.append(password)
        return encode(self, password, *args, **kwargs)

    monkeypatch.setattr(PBKDF2PasswordHasher, "encode", record_and_encode)
    return passwords


# -- enumeration, by response and by timing
# -----------------------------------------------------------

FAILURES = {
    "wrong password": {"password": "wrong"},
    "unknown account": {"username": "nobody"},
    "disabled": {"username": "off"},
    "without a password": {"username": "federated"},
    "wrong password, with a second factor": {"username": "strong", "password": "wrong"},
}


def create_accounts(acme: Organization) -> None:
    """Create an account of each kind."""
    for name in ("off", "federated", "strong"):
        factories.create_member(acme, Role.MEMBER, name)
    User.objects.filter(username="off").update(is_active=False)
    federated = User.objects.get(username="federated")
    federated.set_unusable_password()
    federated.save()
    strong = User.objects.get(username="strong")
    Authenticator.objects.create(user=strong, type=Authenticator.Type.TOTP, data={})


def test_a_failed_sign_in_doesnt_reveal_whether_the_account_exists(
    acme: Organization, anna: User, hashed_passwords: list[str]
) -> None:
    create_accounts(acme)
    results = {}
    for name, overrides in FAILURES.items():
        hashed_passwords.clear()
        response = Client().post(
            reverse("admin:login"), {"username": "anna", "password": PASSWORD} | overrides
        )
        errors = response.context["form"].errors.as_data()["__all__"]
        results[name] = (
            response.status_code,
            [error.code for error in errors],
            len(hashed_passwords),
        )
    assert results == dict.fromkeys(FAILURES, (200, ["invalid_login"], 1))


FORGOTTEN = {
    "known": EMAIL,
    "unknown": "nobody@example.com",
    "disabled": "off@example.com",
    "without a password": "federated@example.com",
}


def test_a_reset_request_does_the_same_work_for_every_address(
    acme: Organization, anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_accounts(acme)
    for user in User.objects.filter(username__in=("off", "federated")):
        User.objects.filter(pk=user.pk).update(email=f"{user.username}@example.com")
    monkeypatch.setattr(settings, "BONOBOT_EMAIL_URL", "smtp://mail.example.com")
    queued: list[int] = []
    monkeypatch.setattr(
        account_tasks.send_password_resets, "delay", lambda accounts: queued.append(len(accounts))
    )
    results = {}
    for name, email in FORGOTTEN.items():
        Attempts.objects.all().delete()
        with (
            CaptureQueriesContext(
                connection,
            ) as queries,
            TestCase.captureOnCommitCallbacks(execute=True),
        ):
            response = Client().post(reverse("admin_password_reset"), {"email": email})
        results[name] = (response.status_code, response["Location"], len(queries), len(mail.outbox))
    assert set(results.values()) == {results["known"]}
    assert queued == [1, 0, 0, 0]


# -- password reset links ----------------------------------------------------------------------


def is_link_valid(link: str) -> bool:
    """Return whether a link leads to the form for a new password."""
    page = Client().get("/" + link.split("/", 3)[3], follow=True)
    return 'name="new_password1"' in page.content.decode()


def reset_password(link: str) -> Client:
    """Set a new password with a link and return the browser."""
    client = Client()
    form = client.get("/" + link.split("/", 3)[3])["Location"]
    client.post(form, {"new_password1": NEW, "new_password2": NEW})
    return client


def change_password(user: User) -> None:
    user.set_password(NEW)
    user.save()


def change_address(user: User) -> None:
    User.objects.filter(pk=user.pk).update(email="anna@example.org")


def lose_password(user: User) -> None:
    user.set_unusable_password()
    user.save()


ENDINGS: dict[str, Callable[[User, str], object]] = {
    "used": lambda user, link: reset_password(link),
    "another password meanwhile": lambda user, link: change_password(user),
    "another address meanwhile": lambda user, link: change_address(user),
    "signed in meanwhile": lambda user, link: sign_in(),
    "no password any more": lambda user, link: lose_password(user),
    "disabled": lambda user, link: User.objects.filter(pk=user.pk).update(is_active=False),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_reset_link_expires(anna: User, ending: str) -> None:
    link = build_reset_link(anna)
    assert is_link_valid(link)
    ENDINGS[ending](anna, link)
    assert not is_link_valid(link)


MANGLED: dict[str, Callable[[str], str]] = {
    "another time": lambda link: re.sub(r"/(\w+)-(\w+)/?$", r"/zzzzzz-\2/", link),
    "another digest": lambda link: re.sub(r"-(\w)(\w+)/?$", r"-\2\1/", link),
    "without a digest": lambda link: re.sub(r"-(\w+)/?$", "-/", link),
    "the form's own address": lambda link: re.sub(r"/[\w-]+/?$", "/set-password/", link),
}


@pytest.mark.parametrize("change", MANGLED)
def test_a_forged_reset_link_is_refused(anna: User, change: str) -> None:
    assert not is_link_valid(MANGLED[change](build_reset_link(anna)))


HOSTS = {
    "host": "evil.example",
    "x-forwarded-host": "evil.example",
    "forwarded": "host=evil.example",
}


@pytest.mark.parametrize("header", HOSTS)
def test_a_reset_link_has_our_own_host(anna: User, mails: None, header: str) -> None:
    with TestCase.captureOnCommitCallbacks(execute=True):
        Client().post(
            reverse("admin_password_reset"), {"email": EMAIL}, headers={header: HOSTS[header]}
        )
    assert all("evil.example" not in str(message.body) for message in mail.outbox)
    assert len(mail.outbox) == (0 if header == "host" else 1)


def test_after_a_reset_the_second_factor_is_still_required(anna: User) -> None:
    set_up_codes(sign_in())
    browser = reset_password(build_reset_link(User.objects.get(pk=anna.pk)))
    assert not is_signed_in(browser)
    client = Client()
    response = client.post(reverse("admin:login"), {"username": "anna", "password": NEW})
    assert response["Location"] == reverse("mfa_authenticate")
    assert not is_signed_in(client)
    assert has_second_factor(anna)


def test_a_pending_sign_in_ends_with_a_new_password(anna: User) -> None:
    secret = set_up_codes(sign_in())
    attacker = sign_in()
    reset_password(build_reset_link(User.objects.get(pk=anna.pk)))
    attacker.post(reverse("mfa_authenticate"), {"code": build_code(secret, 1)})
    assert not is_signed_in(attacker)


# -- the second factor ------------------------------------------------------------------------

STEPS = {
    "previous step": (-1, True),
    "current step": (0, True),
    "next step": (1, True),
    "two steps ago": (-2, False),
    "two steps ahead": (2, False),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_authenticator_code_is_valid_once_and_only_briefly(anna: User, step: str) -> None:
    with travel(time.time(), tick=False):
        secret = set_up_codes(sign_in())
        clear_cache()  # the code that set it up was used
        steps, is_valid = STEPS[step]
        for expected in (is_valid, False):
            client = sign_in()
            client.post(reverse("mfa_authenticate"), {"code": build_code(secret, steps)})
            assert is_signed_in(client) is expected


@pytest.mark.parametrize("step", [-1, 0, 1])
@pytest.mark.parametrize("seconds", [0, 29, 31, 59])
def test_a_used_authenticator_code_is_refused_on_another_device_as_long_as_it_is_valid(
    anna: User, step: int, seconds: int
) -> None:
    """Also in another process, which has its own cache."""
    start = time.time() // 30 * 30
    with travel(start, tick=False) as traveller:
        secret = set_up_codes(sign_in())
        clear_cache()
        code, first = build_code(secret, step), sign_in()
        first.post(reverse("mfa_authenticate"), {"code": code})
        assert is_signed_in(first)
        traveller.shift(seconds)
        clear_cache()
        other_client = sign_in()
        other_client.post(reverse("mfa_authenticate"), {"code": f"{code[:3]} {code[3:]}"})
        assert not is_signed_in(other_client)


GUESSES: dict[str, Callable[[int], str]] = {
    "codes": lambda number: f"{number:06}",
    "recovery codes": lambda number: f"{number:08}",
}


@pytest.mark.parametrize("guess", GUESSES)
def test_password_attempts_per_account_are_limited_for_all_addresses(
    anna: User, guess: str
) -> None:
    secret = set_up_codes(sign_in())
    for number in range(12):
        client = Client(REMOTE_ADDR=f"203.0.113.{number}")
        client.post(reverse("admin:login"), {"username": "anna", "password": PASSWORD})
        client.post(reverse("mfa_authenticate"), {"code": GUESSES[guess](number)})
    last = sign_in()
    last.post(reverse("mfa_authenticate"), {"code": build_code(secret, 1)})
    assert not is_signed_in(last)


def test_the_session_key_changes_at_each_sign_in_step(anna: User) -> None:
    secret = set_up_codes(sign_in())
    client = sign_in()
    old_key = client.session.session_key
    client.post(reverse("mfa_authenticate"), {"code": build_code(secret, 1)})
    assert is_signed_in(client)
    assert client.session.session_key != old_key
    stolen = Client()
    stolen.cookies[settings.SESSION_COOKIE_NAME] = str(old_key)
    assert not is_signed_in(stolen)


def test_a_pending_sign_in_of_another_account_isnt_continued(
    acme: Organization, anna: User
) -> None:
    """Entering the password of another account replaces the pending sign-in."""
    set_up_codes(sign_in())
    factories.create_member(acme, Role.MEMBER, "eve")
    client = sign_in()
    client.post(reverse("admin:login"), {"username": "eve", "password": PASSWORD})
    assert client.get("/api/me").json()["name"] == "eve"
    client.post(reverse("mfa_authenticate"), {"code": "000000"})
    assert client.get("/api/me").json()["name"] == "eve"


RESETTERS = [Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER]


@pytest.mark.parametrize("role", RESETTERS)
def test_only_roles_that_manage_members_can_reset_a_factor(
    acme: Organization, anna: User, role: Role
) -> None:
    set_up_codes(sign_in())
    with pytest.raises(Forbidden):
        reset_second_factor(factories.create_member(acme, role, "eve"), anna)
    assert has_second_factor(anna)


def test_a_person_whose_factor_is_reset_is_notified(
    acme: Organization, anna: User, mails: None
) -> None:
    set_up_codes(sign_in())
    account_tasks.send_due_account_emails()
    mail.outbox.clear()
    reset_second_factor(factories.create_member(acme, Role.OWNER, "bert"), anna)
    account_tasks.send_due_account_emails()
    (message,) = mail.outbox
    assert message.to == [EMAIL]
    assert "anna" in str(message.body)
    assert "administrator" in str(message.body)
