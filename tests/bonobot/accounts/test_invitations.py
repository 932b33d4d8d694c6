"""Invitations: delivery, acceptance, expiry, limits, and no disclosure of accounts."""

import re
from datetime import timedelta

import pytest
import time_machine
from django.conf import settings
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from bonobot.accounts import invitations
from bonobot.accounts.attempt_limits import INVITE_EMAIL, TooManyAttempts, charge_attempt
from bonobot.accounts.models import Attempts, Invitation, Membership, Organization, User
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest
from tests.admin_client import is_signed_in

pytestmark = pytest.mark.django_db

PASSWORD = "a-long-one-for-tests"
ACCOUNT = {"username": "anna", "first_name": "Anna", "password": PASSWORD, "again": PASSWORD}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def _mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "BONOBOT_EMAIL_URL", "smtp://mail.example.com")


def create_invitation(
    organization: Organization, email: str = "anna@example.com", role: Role = Role.MEMBER
) -> str:
    """Create an invitation and return the secret part of its link."""
    return read_secret(
        invitations.create_invitation(factories.build_administrator(organization), email, role).link
    )


def read_secret(link: str) -> str:
    return link.rstrip("/").rpartition("/")[2]


def open_link(text: str) -> Client:
    """Return a browser that opened the link."""
    client = Client()
    response = client.get(reverse("account_invitation", args=[text]))
    assert response["Location"] == reverse("account_join")
    assert response["Referrer-Policy"] == "no-referrer"
    return client


def test_without_a_mail_server_the_link_is_shown_once(acme: Organization) -> None:
    admin = admin_client.sign_in(acme, Role.OWNER)
    page = admin.post("tenancy_invitation_add", email="Anna@Example.com", role="operator")
    link = re.search(r'value="([^"]*/account/invitation/[^"]+)"', page)
    assert link
    row = Invitation.objects.get()
    assert (row.email, row.role, row.mailed_at) == ("anna@example.com", "operator", None)
    secret = read_secret(link[1]).partition("_")[2]
    assert secret not in row.digest
    for name in ("tenancy_membership_changelist", "tenancy_invitation_changelist"):
        page = admin.get(name)
        assert "anna@example.com" in page
        assert "invited" in admin_client.get_text(page)
        assert secret not in page


@pytest.mark.usefixtures("_mail")
def test_with_a_mail_server_the_link_is_mailed_and_not_shown(acme: Organization) -> None:
    admin = admin_client.sign_in(acme, Role.OWNER)
    page = admin.post("tenancy_invitation_add", email="anna@example.com", role="operator")
    (message,) = mail.outbox
    assert message.to == ["anna@example.com"]
    link = re.search(r"/account/invitation/(\S+)/", str(message.body))
    assert link
    assert link[1] not in page
    assert Invitation.objects.get().mailed_at is not None
    assert invitations.get_invitation_by_link(link[1])


@pytest.mark.usefixtures("_mail")
def test_an_invitation_is_written_in_the_chosen_language(acme: Organization) -> None:
    User.objects.create_user("berta", email="Berta@example.com", language="de")
    with translation.override("en"):
        create_invitation(acme, "berta@example.com")
        create_invitation(acme, "carla@example.com")
    assert [message.subject for message in mail.outbox] == [
        "Acme bei Bonobot beitreten",
        "Join Acme on Bonobot",
    ]


def test_a_new_account_is_created_and_joins(acme: Organization) -> None:
    agent = factories.create_agent(acme)
    invitation = invitations.create_invitation(
        factories.build_administrator(acme), "anna@example.com", Role.MEMBER, agent_ids=[agent.pk]
    )
    client = open_link(read_secret(invitation.link))
    page = admin_client.check_page(client.get(reverse("account_join")))
    assert "Acme" in page
    response = client.post(reverse("account_join"), ACCOUNT, follow=True)
    user = User.objects.get()
    assert (user.email, user.check_password(PASSWORD)) == ("anna@example.com", True)
    assert Membership.objects.get(user=user).role == Role.MEMBER
    assert list(agent.members.all()) == [user]
    assert response.context["user"] == user
    entries = AuditRow.objects.filter(action="invitation_accepted", actor_label="anna")
    assert entries.count() == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"password": "123", "again": "123"}, "password"),
        ({"again": "another-password-than-that"}, "again"),
        ({"username": ""}, "username"),
        ({"username": "taken"}, "username"),
    ],
)
def test_an_invalid_account_is_reported_and_keeps_the_invitation(
    acme: Organization, changes: dict[str, str], field: str
) -> None:
    User.objects.create_user("taken")
    text = create_invitation(acme)
    response = open_link(text).post(reverse("account_join"), ACCOUNT | changes)
    assert field in response.context["form"].errors
    assert User.objects.count() == 1
    assert invitations.get_invitation_by_link(text)


def test_a_person_with_an_account_signs_in_and_joins(acme: Organization) -> None:
    User.objects.create_user("bert", password=PASSWORD)
    client = open_link(create_invitation(acme, role=Role.REVIEWER))
    login = f"{reverse('admin:login')}?next={reverse('account_join')}"
    response = client.post(login, {"username": "bert", "password": PASSWORD}, follow=True)
    assert "bert" in admin_client.get_text(admin_client.check_page(response))
    client.post(reverse("account_join"))
    assert Membership.objects.get(user__username="bert").role == Role.REVIEWER
    assert is_signed_in(client)


def test_an_invitation_can_be_used_once(acme: Organization) -> None:
    text = create_invitation(acme)
    invitations.accept_invitation(text, User.objects.create_user("anna"))
    response = open_link(text).get(reverse("account_join"))
    assert response.status_code == 404
    with pytest.raises(NotFound) as raised:
        invitations.accept_invitation(text, User.objects.create_user("bert"))
    assert raised.value.code == "invitation_ended"


def test_an_invitation_expires_and_can_be_resent(acme: Organization) -> None:
    text = create_invitation(acme)
    later = timezone.now() + timedelta(days=settings.BONOBOT_INVITATION_DAYS, seconds=1)
    with time_machine.travel(later, tick=False):
        with pytest.raises(NotFound):
            invitations.get_invitation_by_link(text)
        row = Invitation.objects.get()
        invitation = invitations.resend_invitation(factories.build_administrator(acme), row)
        assert invitations.get_invitation_by_link(read_secret(invitation.link)).pk == row.pk


def test_resending_invalidates_the_previous_link(acme: Organization) -> None:
    text = create_invitation(acme)
    admin = admin_client.sign_in(acme, Role.OWNER)
    admin.post("tenancy_invitation_send", Invitation.objects.get().pk)
    with pytest.raises(NotFound):
        invitations.get_invitation_by_link(text)


def test_a_revoked_invitation_is_refused(acme: Organization) -> None:
    text = create_invitation(acme)
    admin = admin_client.sign_in(acme, Role.OWNER)
    admin.post("tenancy_invitation_revoke", Invitation.objects.get().pk)
    with pytest.raises(NotFound):
        invitations.get_invitation_by_link(text)
    with pytest.raises(Conflict) as raised:
        invitations.resend_invitation(factories.build_administrator(acme), Invitation.objects.get())
    assert raised.value.code == "invitation_ended"


@pytest.mark.parametrize("text", ["", "_", "nothing", "a_b", "é_\x00"])
def test_an_invalid_link_is_refused(acme: Organization, text: str) -> None:
    create_invitation(acme)
    with pytest.raises(NotFound):
        invitations.get_invitation_by_link(text.replace("a", Invitation.objects.get().key))


def test_an_invitation_doesnt_reveal_whether_an_account_exists(acme: Organization) -> None:
    """The response is identical with and without an account."""
    other_organization = factories.create_organization("other")
    member = factories.create_member(other_organization, Role.OWNER, "bert")
    User.objects.filter(pk=member.id).update(email="known@example.com")
    client = rest.as_role(acme, Role.OWNER)
    responses = [
        client.post("invitations", {"email": f"{name}@example.com", "role": "member"})
        for name in ("known", "nobody")
    ]
    assert [response.status for response in responses] == [201, 201]
    own_fields = {"id", "email", "link", "created_at", "expires_at"}
    known, nobody = (
        {k: v for k, v in response.json.items() if k not in own_fields} for response in responses
    )
    assert known == nobody


def test_an_address_has_one_open_invitation(acme: Organization) -> None:
    create_invitation(acme)
    client = rest.as_role(acme, Role.OWNER)
    body = {"email": "ANNA@example.com", "role": "member"}
    assert client.post("invitations", body).json["code"] == "invited_already"
    User.objects.filter(pk=factories.create_member(acme, Role.MEMBER).id).update(
        email="bert@example.com"
    )
    response = client.post("invitations", body | {"email": "bert@example.com"})
    assert response.json["code"] == "already_member"
    assert create_invitation(factories.create_organization("other"))


def test_a_member_cant_join_twice(acme: Organization) -> None:
    text = create_invitation(acme)
    user = User.objects.get(pk=factories.create_member(acme, Role.MEMBER).id)
    with pytest.raises(Conflict) as raised:
        invitations.accept_invitation(text, user)
    assert raised.value.code == "already_member"
    assert Invitation.objects.usable().exists()


@pytest.mark.parametrize("role", [role for role in Role if role != Role.OWNER])
def test_only_owners_can_invite(acme: Organization, role: Role) -> None:
    with pytest.raises(Forbidden):
        invitations.create_invitation(
            factories.create_member(acme, role), "anna@example.com", Role.MEMBER
        )


@pytest.mark.parametrize("email", ["", "anna", "anna@", "a@b\nBcc: c@d.example", "x" * 300])
def test_an_invalid_email_address_is_refused(acme: Organization, email: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        invitations.create_invitation(factories.build_administrator(acme), email, Role.MEMBER)
    assert raised.value.field == "email"


def test_agents_can_be_set_only_for_members_of_the_organization(acme: Organization) -> None:
    agent, foreign = (
        factories.create_agent(acme),
        factories.create_agent(factories.create_organization("other")),
    )
    client = rest.as_role(acme, Role.OWNER)
    body = {"email": "anna@example.com", "role": "operator", "agents": [agent.slug]}
    assert client.post("invitations", body).json["field"] == "agents"
    body |= {"role": "member", "agents": [str(foreign.pk)]}
    assert client.post("invitations", body).status == 404
    body |= {"agents": [agent.slug]}
    assert client.post("invitations", body).json["agents"] == [str(agent.pk)]


def test_emails_to_one_address_are_limited(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    with time_machine.travel(timezone.now(), tick=False):
        create_invitation(acme)
        for _ in range(INVITE_EMAIL.burst - 1):
            invitations.resend_invitation(administrator, Invitation.objects.get())
        with pytest.raises(TooManyAttempts) as raised:
            invitations.resend_invitation(administrator, Invitation.objects.get())
    assert raised.value.retry_after


def test_attempts_are_counted_by_subject_and_expire() -> None:
    now = timezone.now()
    with time_machine.travel(now, tick=False):
        for _ in range(INVITE_EMAIL.burst):
            charge_attempt(INVITE_EMAIL, "acme", "anna")
        with pytest.raises(TooManyAttempts):
            charge_attempt(INVITE_EMAIL, "acme", "anna")
        charge_attempt(INVITE_EMAIL, "acme", "bert")
    with time_machine.travel(now + timedelta(hours=1), tick=False):
        charge_attempt(INVITE_EMAIL, "acme", "carl")
        assert Attempts.objects.count() == 1
        charge_attempt(INVITE_EMAIL, "acme", "anna")


def test_rest_changes_the_role_of_a_member_and_removes_them(acme: Organization) -> None:
    factories.create_member(acme, Role.OWNER)
    member = Membership.objects.get(user=factories.create_member(acme, Role.MEMBER).id)
    client = rest.as_role(acme, Role.OWNER)
    assert client.patch(f"members/{member.pk}", {"role": "auditor"}).json["role"] == "auditor"
    assert client.get(f"members/{member.pk}").json["role"] == "auditor"
    assert client.delete(f"members/{member.pk}").status == 204
    assert client.get(f"members/{member.pk}").status == 404
