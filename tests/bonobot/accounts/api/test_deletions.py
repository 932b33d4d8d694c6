"""REST: list and restore recently deleted objects."""

from uuid import uuid4

import pytest

from agents.models import Agent
from agents.services import delete_agent
from bonobot.accounts.roles import Role
from tests import factories
from tests.rest import as_role

pytestmark = pytest.mark.django_db


def test_a_deleted_agent_is_listed_and_restored_once() -> None:
    acme = factories.create_organization()
    helper = factories.create_agent(acme)
    client = as_role(acme, Role.OPERATOR)
    assert client.delete(f"agents/{helper.pk}").status == 204

    (deleted,) = client.get("deletions").json["results"]
    assert (deleted["kind"], deleted["object_id"]) == ("agent", str(helper.pk))
    assert client.post(f"deletions/{deleted['id']}/restore").status == 204

    assert client.get(f"agents/{helper.pk}").status == 200
    assert client.get("deletions").json["results"] == []
    again = client.post(f"deletions/{deleted['id']}/restore")
    assert (again.status, again.code) == (404, "not_found")


def test_what_another_organization_deleted_does_not_exist() -> None:
    acme, other_organization = (
        factories.create_organization(),
        factories.create_organization("other"),
    )
    deletion = delete_agent(factories.build_administrator(acme), factories.create_agent(acme))
    assert deletion is not None
    client = as_role(other_organization, Role.OWNER)

    for deletion_id in (deletion.pk, uuid4(), "x"):
        refused = client.post(f"deletions/{deletion_id}/restore")
        assert (refused.status, refused.code) == (404, "not_found")
    assert not Agent.objects.exists()


def test_an_auditor_may_not_restore() -> None:
    acme = factories.create_organization()
    client = as_role(acme, Role.AUDITOR)
    refused = client.get("deletions")
    assert (refused.status, refused.code) == (403, "forbidden")
