"""Organizations: a slug can't give access to the folder of another organization."""

import uuid

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.organizations import save_organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import InvalidInput
from mcp_servers.presets.allowed_folders import get_organization_folder
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
ID = uuid.UUID("0197e2a4-5b1c-7c3e-9d5f-1a2b3c4d5e6f")


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization("acme")


def test_an_owner_cant_reach_other_files_by_changing_the_slug(acme: Organization) -> None:
    other_organization, folder = (
        factories.create_organization("other"),
        get_organization_folder(acme.pk),
    )
    acme.slug = str(other_organization.pk)
    with pytest.raises(InvalidInput) as raised:
        save_organization(factories.build_administrator(acme), acme, adding=False)
    assert (raised.value.code, raised.value.field) == ("slug_fixed", "slug")
    assert get_organization_folder(acme.pk) == folder


def test_the_organization_form_cant_change_the_slug(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert 'name="slug"' not in owner.get("tenancy_organization_change", acme.pk)
    owner.post("tenancy_organization_change", acme.pk, name="Acme 2", slug="other", registry="off")
    acme.refresh_from_db()
    assert (acme.name, acme.slug) == ("Acme 2", "acme")


def test_an_owner_is_led_from_the_list_to_the_only_organization(acme: Organization) -> None:
    factories.create_organization("other")
    url = admin_client.build_url("tenancy_organization_changelist")
    owner = admin_client.sign_in(acme, Role.OWNER)
    expected = admin_client.build_url("tenancy_organization_change", acme.pk)
    assert owner.client.get(url).headers["Location"] == expected
    member = admin_client.sign_in(acme, Role.MEMBER)
    assert member.client.get(url).status_code == 403
    page = admin_client.get_text(admin_client.sign_in(acme, None).client.get(url).content.decode())
    assert "2 organizations" in page
    assert "Create organization" in page


def test_a_taken_slug_is_reported_with_what_to_do(acme: Organization) -> None:
    platform = admin_client.sign_in(acme, None)
    fields = {"name": "Acme", "slug": acme.slug, "registry": "off"}
    page = admin_client.get_text(platform.post("tenancy_organization_add", **fields))
    assert "An organization with this slug already exists. Choose another slug." in page


def test_a_new_organization_is_switched_to(acme: Organization) -> None:
    platform = admin_client.sign_in(acme, None)
    page = platform.post("tenancy_organization_add", name="Twin", slug="twin", registry="off")
    assert "Switched to the new organization Twin." in " ".join(platform.messages)
    text = admin_client.get_text(page)
    assert "Continue: Add a member" in text
    assert platform.client.session["organization"] == "twin"


@pytest.mark.parametrize("slug", [str(ID), str(ID).upper(), ID.hex])
def test_a_slug_cant_look_like_an_identifier(acme: Organization, slug: str) -> None:
    platform = admin_client.sign_in(acme, None)
    page = platform.post("tenancy_organization_add", name="Twin", slug=slug, registry="off")
    assert "slug_not_allowed" in page
    assert not Organization.objects.filter(name="Twin").exists()
    platform.post("tenancy_organization_add", name="Twin", slug="twin", registry="off")
    assert Organization.objects.get(name="Twin").slug == "twin"
