"""Helpers for single sign-on tests: a provider process, and browsers that sign in with it."""

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
from django.conf import settings
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Organization, Provider, User
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import identity_providers as sso
from tests import factories
from tests.parts import ROOT
from tests.servers.openid_provider import CLIENT, SECRET

PASSWORD = "pw-for-tests"
ANNA = "anna@example.com"


@contextmanager
def run_provider() -> Iterator[str]:
    """Run a provider in its own process and yield its URL."""
    command = [sys.executable, "-m", "tests.servers.openid_provider"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
        finally:
            process.terminate()


def create_provider(organization: Organization, url: str, **overrides: Any) -> Provider:
    """Create a provider for the people of an organization."""
    fields = {"name": "Login", "client_id": CLIENT, "client_secret": SECRET, "allow_private": True}
    fields |= {"domains": ["example.com"]}
    return sso.create_provider(
        factories.build_administrator(organization), url=url, **fields | overrides
    )


def read_authorization_request(client: Client, page: Any) -> dict[str, str]:
    """Return the parameters of the authorization request that a page links to."""
    match = re.search(r'href="(http[^"]+/authorize[^"]+)"', page.content.decode())
    assert match, page.content.decode()
    return dict(parse_qsl(urlsplit(html.unescape(match[1])).query))


def authorize(url: str, request: dict[str, str], subject: str, **overrides: Any) -> str:
    """Sign in at the provider with overridden responses; return the callback path."""
    httpx.post(f"{url}/say", content=json.dumps(overrides))
    response = httpx.post(f"{url}/let-in", data={**request, "subject": subject})
    return response.headers["location"].removeprefix(settings.BONOBOT_URL)


def sign_in(client: Client, provider: Provider, subject: str = ANNA, **overrides: Any) -> Any:
    """Sign in with a provider as a browser does; return the response of the callback."""
    page = client.post(reverse("account_sso", args=[provider.pk]))
    return client.get(
        authorize(provider.url, read_authorization_request(client, page), subject, **overrides)
    )


def sign_in_with_password(name: str) -> Client:
    """Return a browser that entered the password."""
    client = Client()
    client.post(reverse("admin:login"), {"username": name, "password": PASSWORD})
    return client


def create_person(organization: Organization, role: Role = Role.MEMBER, name: str = "anna") -> User:
    """Create a member with a password and an email address."""
    user = User.objects.get(pk=factories.create_member(organization, role, name).id)
    User.objects.filter(pk=user.pk).update(email=f"{name}@example.com")
    return User.objects.get(pk=user.pk)


def open_link_page(client: Client, provider: Provider) -> Any:
    """Return the page that links a provider account, after entering the password."""
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    return client.post(reverse("admin:profile_link", args=[provider.pk]))


def read_code(answer: Any) -> str:
    """Return the error code of a sign-in page."""
    match = re.search(r'data-code="(\w+)"', answer.content.decode())
    return match[1] if match else ""
