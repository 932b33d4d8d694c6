"""Password resets: who gets a link, what it does, and no disclosure of accounts."""

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
from tests.admin_client import is_signed_in

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
def jobs_of_worker(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Configure a mail server and return the accounts of each enqueued job."""
    jobs: list[list[str]] = []
    monkeypatch.setattr(settings, "BONOBOT_EMAIL_URL", "smtp://mail.example.com")
    monkeypatch.setattr(
        account_tasks.send_password_resets, "delay", lambda accounts: jobs.append(accounts)
    )
    return jobs


def request_link(email: str) -> tuple[str, str]:
    """Request a link; return the path and the text of the resulting page."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        response = Client().post(reverse("admin_password_reset"), {"email": email}, follow=True)
    return response.redirect_chain[-1][0], admin_client.get_text(admin_client.check_page(response))


def test_the_response_is_the_same_with_and_without_an_account(
    anna: User, jobs_of_worker: list[list[str]]
) -> None:
    known, unknown = request_link(EMAIL), request_link("nobody@example.com")
    assert known == unknown
    assert jobs_of_worker == [[str(anna.pk)], []]


def test_the_link_sets_a_new_password_once_and_ends_the_sessions(anna: User) -> None:
    admin = admin_client.AdminClient(anna)
    account_tasks.send_password_resets([str(anna.pk)])
    assert account_tasks.send_due_account_emails() == 1
    (message,) = mail.outbox
    assert message.to == [EMAIL]
    match = re.search(r"https?://[^/]+(/admin/account/password/\S+)", str(message.body))
    assert match
    client = Client()
    form = client.get(match[1])
    assert "password" not in form["Location"].rpartition("password/")[2]
    admin_client.check_page(client.get(form["Location"]))
    weak = client.post(form["Location"], {"new_password1": "123", "new_password2": "123"})
    assert weak.context["form"].errors
    client.post(form["Location"], {"new_password1": NEW, "new_password2": NEW})
    anna.refresh_from_db()
    assert anna.check_password(NEW)
    assert not is_signed_in(admin.client)
    assert "used or has expired" in Client().get(match[1]).content.decode()
    assert AuditRow.objects.filter(action="password_reset", actor_label="anna").exists()


def test_the_link_expires(anna: User) -> None:
    path = build_reset_link(anna).partition("/admin")[2]
    later = timezone.now().timestamp() + settings.PASSWORD_RESET_TIMEOUT + 1
    with travel(later, tick=False):
        assert "used or has expired" in Client().get(f"/admin{path}").content.decode()


@pytest.mark.usefixtures("stopped_clock")
def test_reset_requests_are_limited(anna: User, jobs_of_worker: list[list[str]]) -> None:
    for _ in range(8):
        Client().post(reverse("admin_password_reset"), {"email": EMAIL})
    response = Client().post(reverse("admin_password_reset"), {"email": EMAIL})
    (error,) = response.context["form"].errors.as_data()["__all__"]
    assert error.code == "too_many_attempts"


def test_an_owner_can_send_a_link_but_not_see_it(acme: Organization, anna: User) -> None:
    member = Membership.objects.get(user=anna)
    response = rest.as_role(acme, Role.OWNER).post(f"members/{member.pk}/password-reset")
    assert response.json == {"link": ""}
    assert len(mail.outbox) == 1
    assert AuditRow.objects.filter(action="password_reset_link_created").count() == 1


def test_a_link_that_cant_be_mailed_is_shown_to_platform_administrators_only(
    acme: Organization, anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "BONOBOT_EMAIL_URL", "")
    with pytest.raises(Conflict) as raised:
        send_reset_link(factories.create_member(acme, Role.OWNER), anna)
    assert raised.value.code == "email_not_configured"
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
    anna: User, jobs_of_worker: list[list[str]], email: str
) -> None:
    with TestCase.captureOnCommitCallbacks(execute=True):
        Client().post(reverse("admin_password_reset"), {"email": email})
    assert [account for accounts in jobs_of_worker for account in accounts] == []


def test_the_link_uses_the_configured_host(anna: User) -> None:
    assert "evil.example" not in build_reset_link(anna)
    response = Client().post(
        reverse("admin_password_reset"), {"email": EMAIL}, headers={"host": "evil.example"}
    )
    assert response.status_code == 400


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
