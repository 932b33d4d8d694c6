"""Signing out of the admin and of the identity provider."""

import html
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Organization, Provider
from tests import factories
from tests.admin_client import is_signed_in
from tests.bonobot.accounts.sso.provider_process import (
    ANNA,
    create_person,
    create_provider,
    run_provider,
    sign_in,
    sign_in_with_password,
)
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_provider() as address:
        yield address


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def login(acme: Organization, url: str) -> Iterator[Provider]:
    clear_cache()
    httpx.post(f"{url}/say", json={})
    yield create_provider(acme, url, creates=True)
    clear_cache()


def sign_out(client: Client) -> str:
    """Sign out; return the link to the sign-out page of the provider, if there is one."""
    page = client.post(reverse("admin:logout"))
    assert not is_signed_in(client)
    match = re.search(r'href="(http[^"]+/leave[^"]*)"', page.content.decode())
    return html.unescape(match[1]) if match else ""


def set_metadata(url: str, **metadata: Any) -> None:
    httpx.post(f"{url}/say", json={"metadata": metadata})


def test_a_person_who_signed_in_by_a_provider_is_redirected_to_its_sign_out(
    login: Provider,
) -> None:
    client = Client()
    sign_in(client, login)
    assert httpx.get(sign_out(client)).json() == {"signed out": ANNA}


def test_a_provider_without_a_sign_out_page_isnt_contacted(login: Provider) -> None:
    set_metadata(login.url, end_session_endpoint=None)
    client = Client()
    sign_in(client, login)
    assert sign_out(client) == ""


def test_signing_out_of_a_password_session_contacts_no_provider(
    acme: Organization, login: Provider
) -> None:
    create_person(acme)
    client = sign_in_with_password("anna")
    assert is_signed_in(client)
    assert sign_out(client) == ""


def test_an_id_token_that_is_too_long_for_a_url_isnt_sent(login: Provider) -> None:
    client = Client()
    sign_in(client, login, claims={"groups": ["x" * 100] * 60})
    assert sign_out(client) == f"{login.url}/leave?client_id={login.client_id}"


def test_a_forbidden_provider_url_stops_the_sign_in(login: Provider) -> None:
    set_metadata(login.url, end_session_endpoint="javascript:alert(1)")
    page = Client().post(reverse("account_sso", args=[login.pk]))
    assert page.status_code == 503
