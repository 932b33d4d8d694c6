"""Forgotten passwords: who gets a link, what it does, and what nobody learns."""

import re

import pytest
from django.conf import settings
from django.core import mail
from django.test import Client, TestCase
from django.urls import reverse
from django.utils import timezone
from time_machine import travel

from bonobot.accounts import tasks as account_tasks
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.password_reset import build_reset_link, send_reset_link
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

EMAIL = "anna@example.com"
NEW = "another-long-one-for-tests"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    user = User.objects.get(pk=factories.create_member(acme, Role.OPERATOR, "anna").id)
    user.email = EMAIL
    user.save()
    return user


@pytest.fixture(autouse=True)
def queued(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Set a mail server up, and keep what the worker is asked for."""
    found: list[list[str]] = []
    monkeypatch.setattr(settings, "BONOBOT_EMAIL_URL", "smtp://mail.example.com")
    monkeypatch.setattr(
        account_tasks.send_password_resets, "delay", lambda accounts: found.append(accounts)
    )
    return found


def asked(email: str) -> tuple[str, str]:
    """Ask for a link; return where it leads and what it says."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        answer = Client().post(reverse("admin_password_reset"), {"email": email}, follow=True)
    return answer.redirect_chain[-1][0], admin_client.words(admin_client.page_of(answer))


def test_the_response_is_the_same_with_and_without_an_account(
    anna: User, queued: list[list[str]]
) -> None:
    known, unknown = asked(EMAIL), asked("nobody@example.com")
    assert known == unknown
    assert queued == [[str(anna.pk)], []]


def test_the_link_sets_a_new_password_once_and_ends_the_sessions(anna: User) -> None:
    seat = admin_client.Desk(anna)
    assert account_tasks.send_password_resets([str(anna.pk)]) == 1
    (letter,) = mail.outbox
    assert letter.to == [EMAIL]
    found = re.search(r"https?://[^/]+(/admin/account/password/\S+)", str(letter.body))
    assert found
    client = Client()
    form = client.get(found[1])
    assert "password" not in form["Location"].rpartition("password/")[2]
    admin_client.page_of(client.get(form["Location"]))
    weak = client.post(form["Location"], {"new_password1": "123", "new_password2": "123"})
    assert weak.context["form"].errors
    client.post(form["Location"], {"new_password1": NEW, "new_password2": NEW})
    anna.refresh_from_db()
    assert anna.check_password(NEW)
    assert seat.client.get(reverse("admin:index")).status_code == 302
    assert "used or has expired" in Client().get(found[1]).content.decode()
    assert AuditRow.objects.filter(action="password_reset", actor_label="anna").exists()


def test_the_link_expires(anna: User) -> None:
    path = build_reset_link(anna).partition("/admin")[2]
    later = timezone.now().timestamp() + settings.PASSWORD_RESET_TIMEOUT + 1
    with travel(later, tick=False):
        assert "used or has expired" in Client().get(f"/admin{path}").content.decode()


def test_reset_requests_are_limited(anna: User, queued: list[list[str]]) -> None:
    for _ in range(8):
        Client().post(reverse("admin_password_reset"), {"email": EMAIL})
    answer = Client().post(reverse("admin_password_reset"), {"email": EMAIL})
    (error,) = answer.context["form"].errors.as_data()["__all__"]
    assert error.code == "too_many_attempts"


def test_an_owner_can_send_a_link_but_not_see_it(acme: Organization, anna: User) -> None:
    member = Membership.objects.get(user=anna)
    answer = rest.as_role(acme, Role.OWNER).post(f"members/{member.pk}/password-reset")
    assert answer.json == {"link": ""}
    assert len(mail.outbox) == 1
    assert AuditRow.objects.filter(action="password_reset_offered").count() == 1


def test_a_link_that_cant_be_mailed_is_shown_to_platform_administrators_only(
    acme: Organization, anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "BONOBOT_EMAIL_URL", "")
    with pytest.raises(Conflict) as refused:
        send_reset_link(factories.create_member(acme, Role.OWNER), anna)
    assert refused.value.code == "mail_unset"
    path = send_reset_link(factories.build_administrator(acme), anna).partition("/admin")[2]
    assert Client().get(f"/admin{path}").status_code == 302


def test_an_owner_cant_send_a_link_to_a_member_of_other_organizations(
    acme: Organization, anna: User
) -> None:
    Membership.objects.create(
        organization=factories.create_organization("other"), user=anna, role=Role.MEMBER
    )
    with pytest.raises(Forbidden):
        send_reset_link(factories.create_member(acme, Role.OWNER), anna)


def test_the_sign_in_page_links_to_the_password_reset(anna: User) -> None:
    assert reverse("admin_password_reset") in Client().get(reverse("admin:login")).content.decode()


@pytest.mark.parametrize(
    "email",
    ["anna@ex\u0430mple.com", "anna@example.com\nbcc:evil@example.com", "ann\u0131@example.com"],
)
def test_an_address_that_only_looks_similar_gets_no_link(
    anna: User, queued: list[list[str]], email: str
) -> None:
    with TestCase.captureOnCommitCallbacks(execute=True):
        Client().post(reverse("admin_password_reset"), {"email": email})
    assert [one for accounts in queued for one in accounts] == []


def test_the_link_uses_the_configured_host(anna: User) -> None:
    assert "evil.example" not in build_reset_link(anna)
    answer = Client().post(
        reverse("admin_password_reset"), {"email": EMAIL}, headers={"host": "evil.example"}
    )
    assert answer.status_code == 400


def test_a_link_is_valid_only_for_its_account(acme: Organization, anna: User) -> None:
    bert = User.objects.get(pk=factories.create_member(acme, Role.OWNER, "bert").id)
    parts = {user: build_reset_link(user).rstrip("/").rsplit("/", 2)[1:] for user in (anna, bert)}
    mixed = reverse("account_new_password", args=[parts[bert][0], parts[anna][1]])
    page = Client().get(mixed, follow=True)
    assert 'name="new_password1"' not in page.content.decode()


def test_a_changed_email_address_invalidates_the_link(anna: User) -> None:
    link = build_reset_link(anna)
    anna.email = "anna@example.org"
    anna.save()
    page = Client().get("/" + link.split("/", 3)[3], follow=True)
    assert 'name="new_password1"' not in page.content.decode()
