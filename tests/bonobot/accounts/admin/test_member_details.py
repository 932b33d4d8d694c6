"""Details of members in the admin: email address and last sign-in."""

import pytest

from bonobot.accounts.models import Membership, User
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


def test_the_list_and_the_page_of_a_member_show_the_email_address_and_last_sign_in() -> None:
    acme = factories.create_organization()
    user = User.objects.create_user("mia", "mia@example.com", first_name="Mia")
    member = Membership.objects.create(organization=acme, user=user, role=Role.REVIEWER)
    owner = admin_client.sign_in(acme, Role.OWNER)
    for page in (
        owner.get("tenancy_membership_changelist"),
        owner.get("tenancy_membership_change", member.pk),
    ):
        text = admin_client.get_text(page)
        assert "mia@example.com" in text
        assert "last sign-in" in text.lower()


def test_the_role_of_a_member_can_be_changed_next_to_the_details() -> None:
    acme = factories.create_organization()
    user = User.objects.create_user("mia", "mia@example.com")
    member = Membership.objects.create(organization=acme, user=user, role=Role.REVIEWER)
    owner = admin_client.sign_in(acme, Role.OWNER)
    owner.post("tenancy_membership_change", member.pk, role=Role.AUDITOR, email="x@example.com")
    member.refresh_from_db()
    user.refresh_from_db()
    assert (member.role, user.email) == (Role.AUDITOR, "mia@example.com")
