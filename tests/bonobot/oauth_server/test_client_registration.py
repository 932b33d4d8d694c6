"""Dynamic client registration: validated, limited, and without any access."""

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone
from oauth2_provider.models import Application

from bonobot.accounts.models import User
from bonobot.oauth_server import client_registration
from tests.bonobot.oauth_server.oauth_client import OAuthClient, error

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": "http://127.0.0.1/"}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://example.com/"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["data:text/html,x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://x.example.com/#f"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://a@x.example.com/"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://x.example.com/ https://y"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [f"https://x.example.com/{'x' * 512}"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://x.example.com/"] * 11}, "invalid_redirect_uri"),
        ({"redirect_uris": [7]}, "invalid_redirect_uri"),
        ({"client_name": {"x": 1}}, "invalid_client_metadata"),
        ({"grant_types": ["implicit"]}, "invalid_client_metadata"),
    ],
)
def test_invalid_client_metadata_is_refused(db: None, metadata: dict[str, Any], code: str) -> None:
    assert error(OAuthClient().register(**metadata)) == code


def test_a_client_that_requests_a_secret_is_registered_as_public(db: None) -> None:
    metadata = OAuthClient().register(token_endpoint_auth_method="client_secret_post").json()
    assert metadata["token_endpoint_auth_method"] == "none"
    assert "client_secret" not in metadata


def test_registrations_per_address_are_limited(db: None) -> None:
    oauth_client = OAuthClient()
    last = [oauth_client.register().status_code for _ in range(client_registration.BURST)]
    assert last[-2:] == [201, 429]


def test_clients_that_nobody_authorized_are_deleted(
    ide: OAuthClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ide.authorize()
    monkeypatch.setattr(client_registration, "MAX_UNUSED_CLIENTS", 2)
    names = [OAuthClient(client_name=str(number)).id for number in range(4)]
    ids = set(Application.objects.values_list("client_id", flat=True))
    assert ids == {ide.id, *names[2:]}
    with time_machine.travel(timezone.now() + timedelta(days=2)):
        assert client_registration.prune_unused_clients() == 2
    assert set(Application.objects.values_list("client_id", flat=True)) == {ide.id}


def test_registration_can_be_disabled(olga: User, settings: Any, client: Any) -> None:
    settings.BONOBOT_OAUTH_REGISTRATION = False
    assert (
        "registration_endpoint" not in client.get("/.well-known/oauth-authorization-server").json()
    )
    assert OAuthClient().registered.status_code == 404
