"""A person's own profile: name, language, time zone, email address and sessions."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import translation
from time_machine import travel

from bonobot.accounts.account_emails import send_due_emails
from bonobot.accounts.models import Membership, Organization, Token, User
from bonobot.accounts.password_reset import queue_reset_emails
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.i18n import time_zones
from bonobot.ledger.models import AuditRow
from tests import factories, rest
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db

PASSWORD = "pw-for-tests"
EMAIL = "anna@new.example.com"


@pytest.fixture(autouse=True)
def _mail(settings: object) -> Iterator[None]:
    """Configure a mail server and clear the attempts."""
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"  # type: ignore[attr-defined]
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    user = User.objects.get(pk=factories.create_member(acme, Role.MEMBER, "anna").id)
    User.objects.filter(pk=user.pk).update(email="anna@example.com")
    return User.objects.get(pk=user.pk)


def sign_in() -> Client:
    client = Client()
    client.post(reverse("admin:login"), {"username": "anna", "password": PASSWORD})
    return client


def find_link(text: str) -> str:
    match = re.search(r"/admin/profile/email/\S+", text)
    assert match, text
    return match[0]


def reauthenticate(client: Client) -> None:
    """Enter the password again, as changes of the sign-in require."""
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})


def request_email_change(client: Client, email: str = EMAIL) -> str:
    """Request another email address; return the confirmation link that was mailed to it."""
    reauthenticate(client)
    client.post(reverse("admin:profile_email"), {"email": email})
    assert mail.outbox[-1].to == [email]
    return find_link(str(mail.outbox[-1].body))


def test_people_update_their_own_profile(anna: User) -> None:
    client = sign_in()
    assert client.get(reverse("admin:profile")).status_code == 200
    data = {"first_name": "Anna", "last_name": "Ahrens", "language": ""}
    client.post(reverse("admin:profile"), data)
    anna.refresh_from_db()
    assert anna.get_full_name() == "Anna Ahrens"
    row = AuditRow.objects.get(action="profile_updated")
    assert row.actor_label == "anna"


def test_the_chosen_language_overrides_the_browsers(anna: User) -> None:
    client = sign_in()
    english = {"Accept-Language": "en"}
    client.post(reverse("admin:profile"), {"language": "de"})
    page = client.get(reverse("admin:profile"), headers=english)
    assert page.headers["Content-Language"] == "de"
    client.post(reverse("admin:profile"), {"language": ""})
    page = client.get(reverse("admin:profile"), headers=english)
    assert page.headers["Content-Language"] == "en"


def test_the_language_menu_updates_the_profile(anna: User) -> None:
    client = sign_in()
    client.post(reverse("set_language"), {"language": "de", "next": "/admin/"})
    anna.refresh_from_db()
    assert anna.language == "de"
    client.post(reverse("set_language"), {"language": "xx", "next": "/admin/"})
    anna.refresh_from_db()
    assert anna.language == "de"


def test_emails_are_written_in_the_persons_language(anna: User) -> None:
    with translation.override("en"):
        queue_reset_emails([anna.pk])
        send_due_emails()
        User.objects.filter(pk=anna.pk).update(language="de")
        queue_reset_emails([anna.pk])
        send_due_emails()
    assert [message.subject for message in mail.outbox] == [
        "New password for Bonobot",
        "Neues Passwort für Bonobot",
    ]


def test_a_new_email_address_applies_after_its_confirmation(anna: User) -> None:
    client = sign_in()
    link = request_email_change(client)
    anna.refresh_from_db()
    assert anna.email == "anna@example.com"
    client.get(link)  # as mail scanners do
    anna.refresh_from_db()
    assert anna.email == "anna@example.com"
    client.post(link)
    anna.refresh_from_db()
    assert anna.email == EMAIL
    assert AuditRow.objects.filter(action="email_changed").exists()


def test_a_confirmation_link_is_valid_once_for_one_account(anna: User, acme: Organization) -> None:
    client = sign_in()
    link = request_email_change(client)
    factories.create_member(acme, Role.OWNER, "bert")
    other_client = Client()
    other_client.post(reverse("admin:login"), {"username": "bert", "password": PASSWORD})
    assert b"link_invalid" in other_client.get(link).content
    client.post(link)
    assert client.get(link).status_code == 404
    assert client.get(link[:-3] + "xx/").status_code == 404


def test_a_confirmation_link_expires_after_hours(anna: User) -> None:
    client = sign_in()
    link = request_email_change(client)
    with travel(datetime.now(UTC) + timedelta(hours=4, seconds=1), tick=False):
        assert client.get(link).status_code == 404


def test_changing_the_email_address_requires_the_password(anna: User) -> None:
    client = sign_in()
    response = client.get(reverse("admin:profile_email"))
    assert reverse("account_reauthenticate") in response["Location"]
    assert not mail.outbox


def test_without_a_mail_server_the_address_cant_be_changed(anna: User, settings: object) -> None:
    settings.BONOBOT_EMAIL_URL = ""  # type: ignore[attr-defined]
    client = sign_in()
    reauthenticate(client)
    response = client.post(reverse("admin:profile_email"), {"email": EMAIL})
    assert response.status_code == 200
    assert not mail.outbox


def test_signing_out_elsewhere_keeps_the_current_session(anna: User) -> None:
    here, other_client = sign_in(), sign_in()
    assert here.get(reverse("admin:profile_sessions")).status_code == 200
    here.post(reverse("admin:profile_sessions"))
    assert here.get(reverse("admin:profile")).status_code == 200
    assert other_client.get(reverse("admin:profile")).status_code == 302
    assert AuditRow.objects.filter(action="other_sessions_signed_out").exists()


def test_rest_returns_and_updates_the_profile(anna: User) -> None:
    client = sign_in()
    assert client.get("/api/me").json()["person"]["language"] == ""
    response = client.patch("/api/me", {"language": "de"}, content_type="application/json")
    assert response.json()["person"]["language"] == "de"
    strange = client.patch("/api/me", {"email": EMAIL}, content_type="application/json")
    assert strange.status_code == 400
    other_client = sign_in()
    assert client.delete("/api/me/sessions").json() == {"ended": 1}
    assert other_client.get("/api/me").status_code in (401, 403)
    assert client.get("/api/me").status_code == 200


def test_rest_returns_the_token_that_calls_it(acme: Organization) -> None:
    token = rest.as_role(acme, Role.MEMBER)
    response = token.get("me")
    assert (response.json["kind"], response.json["role"], response.json["person"]) == (
        "token",
        "member",
        None,
    )
    assert token.patch("me", {"language": "de"}).json["code"] == "not_a_person"
    assert token.delete("me/sessions").json["code"] == "not_a_person"


def test_the_command_line_updates_a_member(anna: User, acme: Organization) -> None:
    arguments = ("--language", "de", "--email", "Anna@B.example.com")
    call_command("members", "set", "anna", *arguments, "--org", acme.slug)
    anna.refresh_from_db()
    assert (anna.language, anna.email) == ("de", "anna@b.example.com")
    client = sign_in()
    call_command("members", "sign-out", "anna", "--org", acme.slug)
    assert client.get(reverse("admin:profile")).status_code == 302


def test_times_follow_the_persons_time_zone_and_reports_use_utc(
    anna: User, acme: Organization
) -> None:
    Membership.objects.filter(user=anna).update(role=Role.OWNER)
    client = sign_in()
    at = datetime(2026, 1, 1, 23, 30, tzinfo=UTC)
    token, _text = create_token(factories.build_administrator(acme), name="t", role=Role.MEMBER)
    Token.objects.filter(pk=token.pk).update(created_at=at)
    page = reverse("admin:tenancy_token_changelist")
    usage = reverse("admin:usage")
    assert b'title="2026-01-01 23:30:00 UTC"' in client.get(page).content
    before = read_first_day(client.get(usage))
    form = {"first_name": "", "last_name": "", "language": "", "time_zone": "Europe/Berlin"}
    assert client.post(reverse("admin:profile"), form).status_code == 302
    anna.refresh_from_db()
    assert anna.time_zone == "Europe/Berlin"
    content = client.get(page).content.decode()
    assert 'title="2026-01-02 00:30:00 CET"' in content
    assert at.isoformat() in content  # machine-readable
    assert read_first_day(client.get(usage)) == before
    other_client = Client()
    assert (
        time_zones.format_datetime(at) == "2026-01-01 23:30 UTC"
    )  # the time zone doesn't leak into the next request of this thread
    assert other_client.get(reverse("admin:login")).status_code == 200


def read_first_day(answer: Any) -> str:
    """Return the first day of a report."""
    match = re.search(r"\d{4}-\d\d-\d\d 00:00", answer.content.decode())
    assert match is not None
    return match[0]


@pytest.mark.parametrize("time_zone", ["Mars/Olympus", "EST5EDT", "../Berlin", "europe/berlin"])
def test_an_unknown_time_zone_is_refused(anna: User, time_zone: str) -> None:
    client = sign_in()
    response = client.patch("/api/me", {"time_zone": time_zone}, content_type="application/json")
    assert (response.status_code, response.json()["field"]) == (400, "time_zone")
    anna.refresh_from_db()
    assert anna.time_zone == ""


def test_rest_and_the_command_line_set_a_time_zone(anna: User, acme: Organization) -> None:
    client = sign_in()
    response = client.patch("/api/me", {"time_zone": "Asia/Tokyo"}, content_type="application/json")
    assert response.json()["person"]["time_zone"] == "Asia/Tokyo"
    call_command("members", "set", "anna", "--time-zone", "Europe/Paris", "--org", acme.slug)
    assert client.get("/api/me").json()["person"]["time_zone"] == "Europe/Paris"
    client.patch("/api/me", {"time_zone": "UTC"}, content_type="application/json")
    assert client.get("/api/me").json()["person"]["time_zone"] == ""


def test_the_default_language_is_explained(anna: User) -> None:
    page = sign_in().get(reverse("admin:profile")).content.decode()
    assert "Browser default" in page
    assert "---------" not in page
