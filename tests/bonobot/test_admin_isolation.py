"""No page of the admin shows an object of another organization, for any role."""

from collections.abc import Iterator
from itertools import product
from uuid import UUID, uuid4

import pytest
import pytest_django
from django.contrib.admin import site
from django.urls import reverse

from agents.models import Agent
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Definition, Server
from tests import admin_client, factories
from tests.screens import (
    ADDRESSES,
    SCHEDULE,
    build_arguments,
    create_objects,
    render_without_signals,
    share_rows,
)
from tests.selection import WHOLE

NAMED = [(name, parameters) for name, parameters in ADDRESSES if parameters]
Organizations = tuple[Organization, Organization, dict[str, UUID]]


@pytest.fixture(scope="module")
def organizations(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[Organizations]:
    """Fill two organizations; return them and the IDs of the objects of the second one."""
    with share_rows(django_db_blocker):
        acme, other_organization = (
            factories.create_organization("acme"),
            factories.create_organization("other"),
        )
        create_objects(acme)
        yield acme, other_organization, create_objects(other_organization)


# Owners see all of their organization, so that only its boundary hides an object from them. The
# whole suite tries the other roles, too.
ROLES = tuple(Role) if WHOLE else (Role.OWNER,)


@pytest.mark.parametrize("role", ROLES)
def test_an_object_of_another_organization_returns_404(
    organizations: Organizations, role: Role
) -> None:
    acme, other, foreign = organizations
    unknown = dict.fromkeys(foreign, uuid4()) | {SCHEDULE: 10**9}
    client = admin_client.sign_in(acme, role).client
    before = count_rows()
    id_sets = (foreign, unknown) if role == Role.OWNER else (foreign,)
    # The roles between them send GET, or POST where a page supports no GET.
    is_narrower = role not in (Role.OWNER, Role.MEMBER)
    # Errors are returned as a fragment of a page: navigation is tested elsewhere.
    headers = {FRAGMENT_HEADER: "1"}
    with render_without_signals():
        for (name, parameters), ids in product(NAMED, id_sets):
            kwargs = build_arguments(name, parameters, ids) | (
                {"slug": "none"} if "slug" in parameters else {}
            )
            address = reverse(f"admin:{name}", kwargs=kwargs)
            for send in (client.get, client.post):
                response = send(address, headers=headers)
                # History only redirects to the audit log, which shows entries of this organization.
                is_redirect = response.status_code == 302 and name.endswith("_history")
                assert is_redirect or response.status_code in (403, 404, 405), (
                    name,
                    response.status_code,
                )
                if response.status_code != 405 and (is_narrower or ids is unknown):
                    break
    assert count_rows() == before
    assert Server.objects.filter(organization=other).count() == 1
    assert Agent.objects.filter(organization=other, enabled=True).count() == 1
    assert Definition.objects.filter(organization=other, enabled=True, pinned_digest="").exists()


def count_rows() -> dict[str, int]:
    """Return the number of rows of every model in the admin."""
    return {model.__name__: model._base_manager.count() for model in site._registry}
