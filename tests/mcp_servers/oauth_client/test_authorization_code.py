"""Logins through a browser: PKCE, single-use states, issuers compared, tokens rotated."""

import logging
from datetime import timedelta
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from bonobot.accounts.models import User
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import OAuthClient, OAuthGrant, OAuthLogin, Server
from mcp_servers.oauth_client.access_tokens import build_person_endpoint
from tests import factories
from tests.mcp_servers.oauth_client.conftest import LOGIN, call_tool

pytestmark = pytest.mark.django_db(transaction=True)


def browser(principal) -> Client:
    client = Client()
    client.force_login(User.objects.get(pk=principal.id))
    return client


@pytest.fixture
def owner(organization):
    return factories.create_member(organization, Role.OWNER)


@pytest.fixture
def owners(owner) -> Client:
    return browser(owner)


def start_login(client: Client, server: Server):
    """Press the button; return the authorization URL, or the error page."""
    page = client.post(f"/oauth/start/{server.pk}")
    return page["Location"] if page.status_code == 303 else page


def finish_login(client: Client, location: str, **changes: str | None):
    """Let the authorization server agree, then follow its redirect with changed parameters."""
    response = httpx.get(location)
    callback = urlsplit(response.headers["location"])
    parameters = {name: values[0] for name, values in parse_qs(callback.query).items()} | changes
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return client.get(f"{callback.path}?{query}")


def signed_in(client: Client, server: Server):
    return finish_login(client, start_login(client, server))


def get_error_code(page) -> str:
    return page.context["problem"].code


def test_the_sign_in_page_shows_the_server_and_for_whom_it_signs_in(owners, register):
    server = register({**LOGIN, "scopes": "docs:read"})
    page = owners.get(f"/oauth/start/{server.pk}")
    assert page.status_code == 200
    assert b"docs:read" in page.content
    assert b"127.0.0.1" in page.content
    assert "form-action 'self' https:" in page["Content-Security-Policy"]
    assert not OAuthLogin.objects.exists()


def test_a_login_with_pkce_creates_a_grant_that_calls_use(owners, register, protected):
    server = register({**LOGIN, "scopes": "docs:read"})
    location = start_login(owners, server)
    parameters = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
    assert parameters["code_challenge_method"] == "S256"
    assert parameters["resource"] == protected.url
    assert parameters["redirect_uri"] == f"{settings.BONOBOT_URL}/oauth/callback"
    assert parameters["scope"] == "docs:read"
    page = finish_login(owners, location)
    assert page.status_code in (200, 302)
    assert call_tool(server)
    (exchange,) = protected.token_requests
    assert exchange["grant_type"] == "authorization_code"
    assert exchange["resource"] == protected.url
    assert len(exchange["code_verifier"]) >= 43
    assert AuditRow.objects.filter(action="oauth_connected").count() == 1


def test_dynamic_registration_is_the_last_resort(owners, register, protected):
    signed_in(owners, register(LOGIN))
    (registration,) = protected.seen()["registrations"]
    assert registration["application_type"] == "web"
    assert registration["redirect_uris"] == [f"{settings.BONOBOT_URL}/oauth/callback"]
    assert OAuthClient.objects.get().issuer == protected.origin
    signed_in(owners, register(LOGIN))
    assert len(protected.seen()["registrations"]) == 1  # the registration is stored by issuer


def test_the_client_id_metadata_document_is_preferred_to_registration(
    owners, register, protected, monkeypatch
):
    monkeypatch.setattr(settings, "BONOBOT_URL", "https://bonobot.example")
    protected.set(client_documents=True)
    location = start_login(owners, register(LOGIN))
    (client_id,) = parse_qs(urlsplit(location).query)["client_id"]
    assert client_id == "https://bonobot.example/oauth/client-metadata.json"
    assert not protected.seen()["registrations"]
    document = Client().get("/oauth/client-metadata.json").json()
    assert document["client_id"] == client_id
    assert document["application_type"] == "web"


def test_a_configured_client_is_preferred(owners, register, protected):
    protected.set(client_documents=True)
    location = start_login(owners, register({**LOGIN, "client_id": "entered"}))
    assert parse_qs(urlsplit(location).query)["client_id"] == ["entered"]


def test_without_a_client_a_person_is_asked_to_register_one(owners, register, protected):
    protected.set(registration=False)
    assert get_error_code(start_login(owners, register(LOGIN))) == "client_unknown"


def test_an_authorization_server_without_pkce_is_refused(owners, register, protected):
    protected.set(pkce=False)
    assert get_error_code(start_login(owners, register(LOGIN))) == "pkce_unsupported"
    assert not OAuthLogin.objects.exists()


def test_a_server_of_2025_03_26_without_metadata_has_default_endpoints(owners, register, protected):
    protected.set(resource_metadata_served=False, metadata_served=False)
    server = register(LOGIN)
    location = start_login(owners, server)
    assert location.startswith(f"{protected.origin}/authorize?")
    assert finish_login(owners, location).status_code in (200, 302)
    assert call_tool(server)
    assert OAuthClient.objects.get().issuer == protected.origin


def test_an_authorization_server_that_a_resource_names_must_publish_metadata(
    owners, register, protected
):
    protected.set(metadata_served=False)
    page = start_login(owners, register(LOGIN))
    assert get_error_code(page) == "oauth_metadata_invalid"
    assert not protected.seen()["registrations"]


def test_an_authorization_url_that_isnt_http_is_refused(owners, register, protected):
    protected.set(extra={"authorization_endpoint": "javascript:alert(1)"})
    assert get_error_code(start_login(owners, register(LOGIN))) == "bad_url"


ISSUERS = {
    "named and right": (True, "RIGHT", None),
    "named and wrong": (True, "https://evil.example", "iss_mismatch"),
    "named and missing": (True, None, "iss_missing"),
    "named with a slash more": (True, "SLASH", "iss_mismatch"),
    "not named and missing": (False, None, None),
    "not named and right": (False, "RIGHT", None),
    "not named and wrong": (False, "https://evil.example", "iss_mismatch"),
}


@pytest.mark.parametrize("name", ISSUERS)
def test_the_issuer_of_a_response_is_compared_exactly(owners, register, protected, name):
    iss_named, iss, code = ISSUERS[name]
    iss = {"RIGHT": protected.origin, "SLASH": f"{protected.origin}/"}.get(iss or "", iss)
    protected.set(iss_named=iss_named)
    server = register(LOGIN)
    page = finish_login(owners, start_login(owners, server), iss=iss)
    if code is None:
        assert call_tool(server)
    else:
        assert get_error_code(page) == code
        assert not protected.token_requests


def test_the_issuer_of_an_error_response_is_checked_too(owners, register, protected):
    protected.set(iss_named=True)
    server = register(LOGIN)
    page = finish_login(
        owners, start_login(owners, server), iss=None, error="access_denied", code=None
    )
    assert get_error_code(page) == "iss_missing"
    page = finish_login(owners, start_login(owners, server), error="access_denied<b>", code=None)
    assert get_error_code(page) == "login_rejected"
    assert b"<b>" not in page.content


def test_a_state_can_be_used_once(owners, register, protected):
    location = start_login(owners, register(LOGIN))
    finish_login(owners, location)
    assert get_error_code(finish_login(owners, location)) == "state_used"
    assert len(protected.token_requests) == 1


def test_an_unknown_state_is_refused(owners, register):
    page = finish_login(owners, start_login(owners, register(LOGIN)), state="made-up")
    assert get_error_code(page) == "state_unknown"


def test_a_state_expires_after_ten_minutes(owners, register):
    location = start_login(owners, register(LOGIN))
    OAuthLogin.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert get_error_code(finish_login(owners, location)) == "state_expired"


def test_another_person_or_browser_cant_finish_or_cancel_a_login(
    owners, owner, register, organization, protected
):
    location = start_login(owners, register(LOGIN))
    stranger = browser(factories.create_member(organization, Role.OWNER, "mallory"))
    page = finish_login(stranger, location)
    assert (page.status_code, get_error_code(page)) == (403, "state_mismatch")
    assert get_error_code(finish_login(browser(owner), location)) == "state_mismatch"
    assert not protected.token_requests
    assert finish_login(owners, location).status_code in (200, 302)


def test_a_login_for_settings_that_changed_meanwhile_is_refused(owners, register, protected):
    server = register(LOGIN)
    location = start_login(owners, server)
    Server.objects.filter(pk=server.pk).update(auth_config={**LOGIN, "client_id": "another"})
    assert get_error_code(finish_login(owners, location)) == "login_outdated"
    assert not OAuthGrant.objects.exclude(access_token="").exists()


def test_only_roles_that_manage_servers_can_sign_the_organization_in(register, organization):
    member = browser(factories.create_member(organization, Role.MEMBER))
    page = member.get(f"/oauth/start/{register(LOGIN).pk}")
    assert (page.status_code, get_error_code(page)) == (403, "forbidden")


def test_servers_of_other_organizations_arent_found(register):
    elsewhere = factories.create_member(factories.create_organization("other"), Role.OWNER)
    assert browser(elsewhere).get(f"/oauth/start/{register(LOGIN).pk}").status_code == 404


def test_a_server_without_a_login_is_reported(owners, register):
    assert get_error_code(owners.get(f"/oauth/start/{register().pk}")) == "no_login"


def test_people_who_arent_signed_in_are_redirected_to_the_sign_in(register):
    assert "login" in Client().get(f"/oauth/start/{register(LOGIN).pk}")["Location"]


def test_a_get_changes_nothing(owners, register, protected):
    owners.get(f"/oauth/start/{register(LOGIN).pk}")
    assert not OAuthLogin.objects.exists()
    assert not protected.seen()["registrations"]


def test_refresh_tokens_are_rotated(owners, register, protected):
    server = register(LOGIN)
    signed_in(owners, server)
    first = call_tool(server)
    for _ in range(3):
        OAuthGrant.objects.update(expires_at=timezone.now())
        assert call_tool(server) != first
    grant_types = [each["grant_type"] for each in protected.token_requests]
    assert grant_types == ["authorization_code", *["refresh_token"] * 3]
    refresh_tokens = [each["refresh_token"] for each in protected.token_requests[1:]]
    assert len(set(refresh_tokens)) == 3


def test_a_revoked_grant_requires_a_login_with_a_remedy(owners, register, protected):
    server = register(LOGIN)
    signed_in(owners, server)
    protected.set(refuse_grants="invalid_grant", forget=True)
    with pytest.raises(Problem) as caught:
        call_tool(server)
    assert caught.value.code == "needs_reauth"
    server.refresh_from_db()
    assert server.status == Server.Status.NEEDS_REAUTH
    assert f"/oauth/start/{server.pk}" in server.status_detail
    assert not OAuthGrant.objects.get().refresh_token
    before = len(protected.token_requests)
    with pytest.raises(Problem):
        call_tool(server)
    assert len(protected.token_requests) == before  # there is no token left to refresh with
    protected.set(refuse_grants="")
    signed_in(owners, server)
    assert call_tool(server)


def test_an_outage_of_the_authorization_server_keeps_the_login(owners, register, protected):
    server = register(LOGIN)
    signed_in(owners, server)
    OAuthGrant.objects.update(expires_at=timezone.now())
    protected.set(down=True)
    with pytest.raises(Problem) as caught:
        call_tool(server)
    assert caught.value.code == "authorization_server_unreachable"
    protected.set(down=False)
    assert call_tool(server)


def test_a_missing_login_is_a_task_from_the_first_call(register):
    server = register(LOGIN)
    with pytest.raises(Problem) as caught:
        call_tool(server)
    assert caught.value.code == "needs_reauth"
    assert f"/oauth/start/{server.pk}" in caught.value.remedy


def test_additional_scopes_are_requested_at_the_next_login(owners, register, protected):
    server = register({**LOGIN, "scopes": "read"})
    signed_in(owners, server)
    protected.set(needed_scope="write")
    with pytest.raises(Problem) as caught:
        call_tool(server)
    assert caught.value.code == "needs_reauth"
    assert parse_qs(urlsplit(start_login(owners, server)).query)["scope"] == ["read write"]
    signed_in(owners, server)
    assert call_tool(server)


def test_granted_scopes_that_arent_enough_require_no_login(owners, register, protected):
    protected.set(needed_scope="write", never_enough=True, scope_told=False)
    server = register({**LOGIN, "scopes": "read write"})
    signed_in(owners, server)
    assert (
        OAuthGrant.objects.get().scope == "read write"
    )  # the response named no scope: the requested one applies
    with pytest.raises(Problem) as caught:
        call_tool(server)
    assert caught.value.code == "token_rejected"


def test_each_person_has_their_own_tokens(organization, register, protected):
    server = register({**LOGIN, "per": "user"})
    people = [factories.create_member(organization, Role.MEMBER, name) for name in ("ann", "ben")]
    for person in people:
        assert signed_in(browser(person), server).status_code == 200
    endpoint = build_endpoint(server)
    users = [User.objects.get(pk=person.id).pk for person in people]
    digests = {call_tool(server, build_person_endpoint(endpoint, pk)) for pk in users}
    assert len(digests) == 2
    assert len({build_person_endpoint(endpoint, pk).fingerprint for pk in users}) == 2
    with pytest.raises(Problem) as caught:
        build_person_endpoint(endpoint, None)
    assert caught.value.code == "needs_reauth"


def test_no_page_or_log_contains_a_secret(owners, register, caplog, protected):
    caplog.set_level(logging.DEBUG)
    server = register(LOGIN)
    location = start_login(owners, server)
    verifier = OAuthLogin.objects.get().verifier.open()
    page = finish_login(owners, location)
    call_tool(server)
    grant = OAuthGrant.objects.get()
    output = caplog.text + page.content.decode() + repr(OAuthLogin.objects.values())
    output += repr(list(AuditRow.objects.values())) + repr(OAuthGrant.objects.values())
    for secret in (verifier, grant.access_token.open(), grant.refresh_token.open()):
        assert secret not in output
