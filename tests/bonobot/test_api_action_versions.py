"""Actions of REST (POST) compare the version in `If-Match` with their object's."""

import pytest

from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.ledger.models import AuditRow
from tests import factories, rest
from tests.bonobot.test_api_matrix import OPERATIONS, ROUTES, fill_path
from tests.bonobot.test_api_versions import (
    FilledOrganization,
    example,
    shared_organization,
    sign_in_owner,
)

__all__ = ["example", "shared_organization"]

pytestmark = pytest.mark.django_db

ACTIONS = sorted(
    route
    for route, method in OPERATIONS
    if method == "POST" and "<" in route and not hasattr(ROUTES[route], "get")
)
# Actions without requests to other hosts, with a body that they accept.
LOCAL_ACTIONS: dict[str, object] = {
    "mcp-servers/<str:server_id>/enable": None,
    "mcp-servers/<str:server_id>/disable": None,
    "mcp-servers/<str:server_id>/approve": {"all": True},
}


@pytest.mark.parametrize("route", ACTIONS)
def test_an_action_with_an_outdated_version_is_refused(
    example: FilledOrganization, route: str
) -> None:
    client, path = sign_in_owner(example.organization), fill_path(route, example.ids)
    before = AuditRow.objects.count()
    for tag in ('"outdated"', 'W/"outdated"', "outdated", ""):
        response = client.post(path, {}, If_Match=tag)
        expected = (404, "no_draft") if "draft" in route else (412, "precondition_failed")
        assert (response.status, response.code) == expected, response
    assert AuditRow.objects.count() == before


@pytest.mark.parametrize("route", LOCAL_ACTIONS)
def test_an_action_with_the_current_version_succeeds_once(
    example: FilledOrganization, route: str
) -> None:
    client, path = sign_in_owner(example.organization), fill_path(route, example.ids)
    tag = client.get(path.rpartition("/")[0]).headers["ETag"]
    response = client.post(path, LOCAL_ACTIONS[route], If_Match=tag)
    assert response.status == 200, response
    client.patch(path.rpartition("/")[0], {"description": "Changed elsewhere."})
    response = client.post(path, LOCAL_ACTIONS[route], If_Match=tag)
    assert (response.status, response.code) == (412, "precondition_failed"), response
    assert response.json["changed"]["description"] == "Changed elsewhere."


def test_an_action_doesnt_show_an_object_that_the_caller_cant_read(
    example: FilledOrganization,
) -> None:
    """The version conflict has the object's values, so it needs the permission to read it."""
    administrator = factories.build_administrator(example.organization)
    _token, text = create_token(administrator, name="m", role=Role.MEMBER, agent_ids=[])
    client = rest.RestClient(text)
    for route in ACTIONS:
        response = client.post(fill_path(route, example.ids), {}, If_Match='"outdated"')
        assert response.status in (403, 404, 412), response
        assert not (response.json or {}).get("changed"), response
