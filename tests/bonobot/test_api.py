"""The REST API: authentication, errors, bodies, pages, and the OpenAPI document."""

import json

import pytest
from django.core.exceptions import PermissionDenied, RequestDataTooBig, ValidationError
from django.db import DataError, IntegrityError, OperationalError
from django.db.models import ProtectedError
from django.test import Client
from django.urls import resolve
from rest_framework import exceptions

from bonobot.accounts.models import Membership, Organization, Token, User
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import revoke_token
from bonobot.api_urls import RENAMED_PATHS, UnknownPathView
from bonobot.core.api.exception_handler import build_problem_details, handle_exception, to_problem
from bonobot.core.problems import Conflict, Problem
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def owner(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.OWNER)


# -- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("notices?limit=1&state=sent", "notifications?limit=1&state=sent"),
        ("notice-channels/7/test", "notification-channels/7/test"),
        ("questions", "elicitation-requests"),
        ("agents/a%20b%3F/held", "agents/a%20b%3F/flow-labels"),
        ("sessions/7/grants/8", "sessions/7/approvals/8"),
        ("tool-policy/replay", "tool-policy/simulate"),
    ],
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_renamed_path_redirects_with_its_method_and_query(old, new, method):
    response = getattr(Client(enforce_csrf_checks=True), method)(f"/api/{old}")
    assert (response.status_code, response.headers["Location"]) == (308, f"/api/{new}")


def test_each_renamed_path_leads_to_one_that_exists():
    for new in RENAMED_PATHS.values():
        filled = new.format(agent="a", session="s", token="t", rest="")
        assert resolve(f"/api/{filled}").func.cls is not UnknownPathView


# -- authentication
# ----------------------------------------------------------------------------------


def test_a_request_without_authentication_is_refused_with_a_remedy(acme):
    response = RestClient().get("agents")
    assert (response.status, response.code) == (401, "not_authenticated")
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="bonobot"'
    assert "Authorization" in response.json["remedy"]


@pytest.mark.parametrize("text", ["bnb_x_y", "nonsense", "", "bnb__", "bnb_\u00e4_\u00f6"])
def test_all_invalid_tokens_get_the_same_response(acme, text):
    response = RestClient().get("agents", Authorization=f"Bearer {text}")
    assert (response.status, response.code) == (401, "bad_token")
    assert 'error="invalid_token"' in response.headers["WWW-Authenticate"]


def test_a_revoked_token_is_refused_immediately(acme, owner):
    assert owner.get("agents").status == 200
    revoke_token(factories.build_administrator(acme), Token.objects.get())
    assert owner.get("agents").code == "bad_token"


def test_a_person_signs_in_by_session_and_writes_with_the_csrf_token(acme):
    user = User.objects.create_user("ann", password="pw-for-tests")
    Membership.objects.create(organization=acme, user=user, role=Role.OWNER)
    client = RestClient(user=user, csrf=True)
    assert client.get("agents").status == 200
    body = {"name": "Offline", "kind": "offline"}
    response = client.post("model-endpoints", body)
    assert (response.status, response.code) == (403, "csrf_failed")


def test_a_person_in_two_organizations_chooses_one_by_the_header(acme):
    other_organization = factories.create_organization("other")
    user = User.objects.create_user("ann", password="pw-for-tests")
    for organization in (acme, other_organization):
        Membership.objects.create(organization=organization, user=user, role=Role.OWNER)
        factories.create_agent(organization, f"agent-of-{organization.slug}")
    client = RestClient(user=user)
    for slug in ("acme", "other"):
        agents = client.get("agents", Bonobot_Organization=slug).json["results"]
        assert [agent["slug"] for agent in agents] == [f"agent-of-{slug}"]


def test_an_organization_of_others_isnt_found(acme):
    factories.create_organization("other")
    user = User.objects.create_user("ann", password="pw-for-tests")
    Membership.objects.create(organization=acme, user=user, role=Role.OWNER)
    client = RestClient(user=user)
    foreign = client.get("agents", Bonobot_Organization="other")
    missing = client.get("agents", Bonobot_Organization="nowhere")
    assert foreign.status == missing.status == 404
    assert foreign.text.replace("other", "nowhere") == missing.text


def test_a_token_of_another_organization_than_the_header_is_refused(acme, owner):
    assert owner.get("agents", Bonobot_Organization="acme").status == 200
    assert owner.get("agents", Bonobot_Organization="other").status == 404


def test_a_person_without_an_organization_is_refused(acme):
    response = RestClient(user=User.objects.create_user("stranger")).get("agents")
    assert (response.status, response.json["rule"]) == (403, "membership")


def test_a_token_for_one_agent_reads_and_runs_that_agent_only(acme):
    own_agent, other_agent = (
        factories.create_agent(acme, "mine"),
        factories.create_agent(acme, "other"),
    )
    client = rest.as_role(acme, Role.OWNER, agent=own_agent)
    assert [agent["slug"] for agent in client.get("agents").json["results"]] == ["mine"]
    assert client.get(f"agents/{own_agent.pk}/tools").status == 200
    assert client.get(f"agents/{other_agent.pk}").status == 404
    for path in ("mcp-servers", "audit", "tokens", "model-endpoints", "members"):
        assert client.get(path).json["rule"] == "token:agent"
    assert client.patch(f"agents/{own_agent.pk}", {"name": "x"}).json["rule"] == "token:agent"


# -- paths and methods -----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["nothing", "agents/", "mcp-servers/x/y/z", "", "agents/a/b"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_path_returns_a_problem(path, method):
    response = RestClient().send(method, f"/api/{path}")
    assert (response.status, response.code) == (404, "unknown_path")


def test_an_unsupported_method_returns_405_with_the_supported_ones(owner):
    response = owner.delete("agents")
    assert (response.status, response.code) == (405, "method_not_allowed")
    assert response.headers["Allow"] == "GET, HEAD, POST"


def test_html_is_never_returned(owner):
    response = owner.get("agents", Accept="text/html")
    assert response.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", ["agents/%00", "agents/a%00b/tools", "mcp-servers/%00"])
def test_a_name_that_the_database_cant_store_isnt_found(owner, path):
    assert owner.get(path).status == 404


# -- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"\xff\xfe",
        b'{"name": NaN}',
        b'{"name": 1e999}',
        b'{"name": "a", "name": "b"}',
        b'{"name": "a\\u0000b"}',
        b'{"name": "\\ud800"}',
        b'{"a\\u0000": 1}',
        b"[" * 100_000,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"1" * 5_000,
    ],
)
def test_an_invalid_body_is_refused(owner, raw):
    response = owner.send("POST", "agents", raw)
    assert (response.status, response.code) == (400, "invalid_json")


@pytest.mark.parametrize("raw", [b"[]", b'"text"', b"1", b"null"])
def test_a_body_must_be_an_object(owner, raw):
    assert owner.send("POST", "agents", raw).code == "invalid"


def test_a_body_of_another_content_type_is_refused(owner):
    response = owner.send("POST", "agents", b"name=x", Content_Type="text/plain")
    assert (response.status, response.code) == (415, "unsupported_media_type")


def test_a_body_that_is_too_large_is_refused(owner, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    response = owner.send("POST", "agents", b'{"name": "' + b"x" * 1000 + b'"}')
    assert (response.status, response.code) == (413, "body_too_large")


def test_all_errors_of_a_body_are_listed(owner):
    response = owner.post("agents", {"name": "", "slug": "no spaces", "max_turns": 0})
    assert (response.status, response.code, response.json["field"]) == (400, "invalid", "name")
    codes = {fault["field"]: fault["code"] for fault in response.json["errors"]}
    assert codes == {"name": "blank", "slug": "invalid", "max_turns": "min_value"}


def test_an_unknown_field_is_reported(owner):
    response = owner.post("agents", {"name": "x", "instruction": "typo"})
    assert (response.code, response.json["field"]) == ("unknown_field", "instruction")
    assert "instructions" in response.json["detail"]


def test_nested_fields_are_reported_by_their_path(acme, owner):
    agent = factories.create_agent(acme)
    body = {"budgets": [{"unit": "tokens", "period": "day", "limit": -1}]}
    response = owner.put(f"agents/{agent.pk}/budgets", body)
    assert response.json["field"] == "budgets[0].limit"


# -- pages ---------------------------------------------------------------------------------------


def test_lists_have_pages_that_link_to_each_other(acme, owner):
    names = [f"agent-{number:02}" for number in range(7)]
    for name in names:
        factories.create_agent(acme, name)
    slugs, address = [], "agents?limit=3"
    while address:
        response = owner.get(address)
        assert set(response.json) == {"results", "next"}
        assert len(response.json["results"]) <= 3
        slugs += [agent["slug"] for agent in response.json["results"]]
        address = response.json["next"]
    assert slugs == names


@pytest.mark.parametrize("limit", ["0", "501", "x", "-1", "", "9" * 30])
def test_a_page_has_1_to_500_rows(owner, limit):
    response = owner.get(f"agents?limit={limit}")
    assert (response.status, response.json["field"]) == (400, "limit")


@pytest.mark.parametrize("cursor", ["x", "%FF", "cD1ub3RoaW5n", "bz0tMQ==", "cD0lMDA="])
def test_a_foreign_cursor_is_refused_or_harmless(owner, cursor):
    assert owner.get(f"audit?cursor={cursor}").status in (200, 400)
    response = owner.get("sessions?cursor=cD1ub3RoaW5n")
    assert (response.status, response.code) == (400, "bad_cursor")


def test_an_unknown_parameter_is_reported(owner):
    response = owner.get("audit?agnet=x")
    assert (response.code, response.json["field"]) == ("unknown_parameter", "agnet")
    assert "agent" in response.json["remedy"]


def test_an_invalid_filter_is_reported(owner):
    response = owner.get("audit?since=yesterday")
    assert (response.status, response.json["field"]) == (400, "since")


@pytest.mark.parametrize("text", ["yes", "1", "null", ""])
def test_an_invalid_boolean_is_refused(owner, text):
    response = owner.get(f"agents?enabled={text}")
    assert (response.status, response.json["field"]) == (400, "enabled")


def test_an_empty_filter_is_ignored_only_for_text_fields(acme, owner):
    factories.create_agent(acme)
    assert len(owner.get("agents?q=").json["results"]) == 1
    response = owner.get("sessions?since=")
    assert (response.status, response.json["field"]) == (400, "since")


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (IntegrityError("UNIQUE constraint failed: x"), 409, "conflict"),
        (DataError("value too long"), 400, "invalid"),
        (OperationalError("the database is locked"), 503, "database_unavailable"),
        (exceptions.Throttled(wait=3), 429, "throttled"),
        (exceptions.AuthenticationFailed("who?"), 401, "not_authenticated"),
        (exceptions.NotFound("what?"), 404, "not_found"),
        (PermissionDenied("inside"), 403, "forbidden"),
        (ValidationError({"name": "inside"}), 400, "invalid"),
        (RequestDataTooBig("inside"), 413, "body_too_large"),
        (ProtectedError("inside", set()), 409, "in_use"),
        (TimeoutError("inside"), 503, "timeout"),
        (RuntimeError("secret-in-a-traceback"), 500, "internal_error"),
    ],
)
def test_an_error_reveals_nothing_internal(error, status, code, caplog):
    response = handle_exception(error, {})
    assert (response.status_code, response.data["code"]) == (status, code)
    assert response.content_type == "application/problem+json"
    is_revealed = str(error) in json.dumps(response.data)
    assert not is_revealed or status in (400, 429)


def test_an_internal_error_is_logged_with_its_traceback(caplog):
    to_problem(RuntimeError("what happened"))
    assert "what happened" in caplog.text


def test_a_problem_is_returned_with_its_fields():
    problem = Conflict("It clashes.", field="name", remedy="Rename it.", retry_after=1.2)
    assert build_problem_details(problem) == {
        "type": "about:blank",
        "title": "Conflict",
        "status": 409,
        "code": "conflict",
        "detail": "It clashes.",
        "field": "name",
        "remedy": "Rename it.",
        "retry_after": 1.2,
    }
    assert handle_exception(problem, {})["Retry-After"] == "2"


@pytest.mark.parametrize("status", [429, 503])
def test_a_temporary_error_always_has_retry_after(status):
    problem = Problem("Not now.", code="not_now", status=status)
    assert int(handle_exception(problem, {})["Retry-After"]) >= 1


# -- the document --------------------------------------------------------------------------------


def test_the_openapi_document_is_public_json(client: Client):
    response = client.get("/api/schema")
    assert response.headers["Content-Type"].startswith("application/json")
    assert response.json()["openapi"].startswith("3.1")


def test_the_api_pages_load_nothing_from_other_origins(client: Client):
    response = client.get("/api/docs")
    page = response.content.decode()
    assert response.status_code == 200
    assert "drf_spectacular_sidecar/swagger-ui-dist" in page
    assert "//cdn" not in page
