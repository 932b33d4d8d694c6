"""What tests of single sign-on share: a provider that runs, and browsers that go there."""

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
from bonobot.accounts.sso import services as sso
from tests import factories
from tests.parts import ROOT
from tests.servers.openid_provider import CLIENT, SECRET

PASSWORD = "pw-for-tests"
ANNA = "anna@example.com"


@contextmanager
def running() -> Iterator[str]:
    """Run a provider in a process of its own and yield its URL."""
    command = [sys.executable, "-m", "tests.servers.openid_provider"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
        finally:
            process.terminate()


def trust(where: Organization, url: str, **more: Any) -> Provider:
    """Let an organization's people sign in there."""
    said = {"name": "Login", "client_id": CLIENT, "client_secret": SECRET, "allow_private": True}
    said |= {"domains": ["example.com"]}
    return sso.create_provider(factories.build_administrator(where), url=url, **said | more)


def led(client: Client, page: Any) -> dict[str, str]:
    """Return what a page that leads to the provider asks it for."""
    found = re.search(r'href="(http[^"]+/authorize[^"]+)"', page.content.decode())
    assert found, page.content.decode()
    return dict(parse_qsl(urlsplit(html.unescape(found[1])).query))


def let_in(url: str, asked: dict[str, str], subject: str, **said: Any) -> str:
    """Sign in at the provider, which then says what it is told; return where it leads back to."""
    httpx.post(f"{url}/say", content=json.dumps(said))
    answer = httpx.post(f"{url}/let-in", data={**asked, "subject": subject})
    return answer.headers["location"].removeprefix(settings.BONOBOT_URL)


def sign_in(client: Client, provider: Provider, subject: str = ANNA, **said: Any) -> Any:
    """Sign in by a provider as a browser does; return the last answer of the way."""
    page = client.post(reverse("account_sso", args=[provider.pk]))
    return client.get(let_in(provider.url, led(client, page), subject, **said))


def by_password(name: str) -> Client:
    """Return a browser that gave its password."""
    client = Client()
    client.post(reverse("admin:login"), {"username": name, "password": PASSWORD})
    return client


def is_in(client: Client) -> bool:
    """Tell whether the browser is signed in to the admin."""
    return client.get(reverse("admin:profile")).status_code == 200


def person(where: Organization, role: Role = Role.MEMBER, name: str = "anna") -> User:
    """Return a member with a password and an address."""
    user = User.objects.get(pk=factories.create_member(where, role, name).id)
    User.objects.filter(pk=user.pk).update(email=f"{name}@example.com")
    return User.objects.get(pk=user.pk)


def to_link(client: Client, provider: Provider) -> Any:
    """Return the page that leads to a provider, to link it; the password is asked for first."""
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    return client.post(reverse("admin:profile_link", args=[provider.pk]))


def code_of(answer: Any) -> str:
    """Return the code that a page of the sign-in tells."""
    found = re.search(r'data-code="(\w+)"', answer.content.decode())
    return found[1] if found else ""
