"""Spellings of internal addresses, in each object with a URL: an organization can save none."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import pytest_django
from django.db import transaction

from agents.models import ModelEndpoint
from bonobot.accounts.models import Provider
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.notifications.models import NotificationChannel
from mcp_servers.models import Preset, Server
from tests import factories, rest
from tests.screens import share_rows

SPELLINGS = {
    "decimal": "https://2130706433",
    "hexadecimal": "https://0x7f000001",
    "hexadecimal parts": "https://0x7f.0.0.0x1",
    "octal": "https://0177.0.0.1",
    "octal, long": "https://0000000177.0.0.1",
    "short": "https://127.1",
    "another loopback address": "https://127.255.255.254",
    "trailing dot": "https://127.0.0.1.",
    "unspecified": "https://0.0.0.0",
    "IPv6": "https://[::1]",
    "IPv6, long": "https://[0000:0000:0000:0000:0000:0000:0000:0001]",
    "IPv6, mapped": "https://[::ffff:127.0.0.1]",
    "IPv6, mapped in hexadecimal": "https://[::ffff:7f00:1]",
    "IPv6, compatible": "https://[::127.0.0.1]",
    "IPv6, translated": "https://[64:ff9b::7f00:1]",
    "IPv6, 6to4": "https://[2002:7f00:1::]",
    "IPv6 with a zone": "https://[fe80::1%25eth0]",
    "IPv6 with a zone, not encoded": "https://[fe80::1%eth0]",
    "name": "https://localhost",
    "name in capitals": "https://LOCALHOST",
    "name with a trailing dot": "https://localhost.",
    "name below": "https://a.localhost",
    "user name": "https://example.com@127.0.0.1",
    "user name and password": "https://example.com:443@127.0.0.1",
    "fragment": "https://127.0.0.1#@example.com",
    "full-width digits": "https://\uff11\uff12\uff17.0.0.1",
    "ideographic full stops": "https://127\u30020\u30020\u30021",
    "percent-encoded": "https://%31%32%37.0.0.1",
    "backslashes": "https:\\\\127.0.0.1",
    "backslash before a host": "https://example.com\\@127.0.0.1",
    "tab": "https://127.0.\t0.1",
    "metadata service": "https://169.254.169.254",
    "metadata service, IPv6": "https://[fd00:ec2::254]",
    "private network": "https://10.0.0.1",
    "private network, mapped": "https://[::ffff:192.168.0.1]",
}


def build_server(url: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "docs",
        "transport_type": "http",
        "endpoint_config": {"url": url},
        **fields,
    }


def build_sign_in(url: str) -> dict[str, Any]:
    auth = {"type": "oauth2", "client_id": "a", "client_secret": "b", "token_url": url}
    return build_server("https://docs.example.com/mcp", auth_config=auth)


def build_api(url: str) -> dict[str, Any]:
    config = {"url": url, "declared": [{"name": "get", "description": "Get.", "path": "/a"}]}
    return {"name": "api", "transport_type": "openapi", "endpoint_config": config}


class UrlObject(NamedTuple):
    """An object with a URL: its path, a body with the URL, and its model."""

    path: str
    build_body: Any
    model: Any


OBJECTS = {
    "server": UrlObject("mcp-servers", build_server, Server),
    "token URL": UrlObject("mcp-servers", build_sign_in, Server),
    "REST API": UrlObject("mcp-servers", build_api, Server),
    "preset": UrlObject("presets", build_server, Preset),
    "model": UrlObject(
        "model-endpoints",
        lambda url: {
            "name": "m",
            "kind": "openai",
            "model": "m",
            "base_url": url,
        },
        ModelEndpoint,
    ),
    "channel": UrlObject(
        "notification-channels",
        lambda url: {"name": "c", "kind": "webhook", "url": url},
        NotificationChannel,
    ),
    "identity provider": UrlObject(
        "identity-providers",
        lambda url: {"name": "p", "url": url, "client_id": "a"},
        Provider,
    ),
}


@pytest.fixture(scope="module")
def shared_owner(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[rest.RestClient]:
    with share_rows(django_db_blocker):
        acme = factories.create_organization()
        administrator = factories.build_administrator(acme)
        _token, text = create_token(administrator, name="owner", role=Role.OWNER)
        yield rest.RestClient(text)


@pytest.fixture
def owner(shared_owner: rest.RestClient) -> Iterator[rest.RestClient]:
    """A client of an owner; changes are rolled back after the test."""
    with transaction.atomic():
        yield shared_owner
        transaction.set_rollback(True)


@pytest.mark.django_db
@pytest.mark.parametrize("kind", OBJECTS)
def test_no_object_is_saved_with_an_internal_address(owner: rest.RestClient, kind: str) -> None:
    target = OBJECTS[kind]
    count = target.model.objects.count()
    accepted, codes = {}, set()
    for name, origin in SPELLINGS.items():
        with transaction.atomic():
            response = owner.post(target.path, target.build_body(f"{origin}/mcp"))
            transaction.set_rollback(True)
        if response.status in (400, 403):
            codes.add(response.code)
        else:
            accepted[name] = response.status
    assert accepted == {}
    assert codes <= {"bad_url", "private_address", "egress_denied", "invalid"}
    assert target.model.objects.count() == count


@pytest.mark.django_db
@pytest.mark.parametrize("kind", OBJECTS)
def test_the_same_body_with_a_public_address_is_saved(owner: rest.RestClient, kind: str) -> None:
    target = OBJECTS[kind]
    response = owner.post(target.path, target.build_body("https://docs.example.com/mcp"))
    assert response.status == 201, response
