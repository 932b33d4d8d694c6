"""The official conformance suite tests Bonobot's authorization server."""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from django.test import Client

from bonobot.accounts.models import User
from bonobot.accounts.roles import Role
from tests import factories
from tests.conformance.scenarios import AUTHORIZATION_REVISIONS, AUTHORIZATION_SERVER
from tests.conformance.suite import CONFORMANCE, LONGEST_S, start_conformance
from tests.processes import Web

pytestmark = [
    pytest.mark.npm,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CONFORMANCE, reason="`make conformance` runs all scenarios"),
]


@dataclass(frozen=True)
class Person:
    """The browser of a person who is signed in, and an agent that they may use."""

    browser: httpx.Client
    resource: str

    def authorize(self, url: str) -> None:
        """Open the consent page, agree, and follow the redirect to the client."""
        page = self.browser.get(url)
        assert page.status_code == 200, page.text
        consent = {
            "answer": "allow",
            "role": "member",
            "scopes": "mcp:tools",
            "csrfmiddlewaretoken": self.browser.cookies[settings.CSRF_COOKIE_NAME],
        }
        redirect = self.browser.post(url, data=consent)
        assert redirect.status_code == 303, redirect.text
        httpx.get(redirect.headers["location"]).raise_for_status()


@pytest.fixture
def oauth_web(start_web: Callable[..., Web]) -> Web:
    return start_web(BONOBOT_OAUTH="on")


@pytest.fixture
def person(oauth_web: Web) -> Iterator[Person]:
    organization = factories.create_organization()
    agent = factories.create_agent(organization)
    member = factories.create_member(organization, Role.OWNER)
    signed_in = Client()
    signed_in.force_login(User.objects.get(pk=member.id))
    name = settings.SESSION_COOKIE_NAME
    with httpx.Client(cookies={name: signed_in.cookies[name].value}) as browser:
        yield Person(browser, f"{oauth_web.url}/mcp/agents/{agent.slug}")


def register_client(web: Web, port: int) -> str:
    """Register the suite's callback; return the client ID."""
    metadata = {
        "client_name": "conformance",
        "redirect_uris": [f"http://127.0.0.1:{port}/callback"],
    }
    response = httpx.post(f"{web.url}/oauth/register", json=metadata)
    return str(response.raise_for_status().json()["client_id"])


def read_authorization_url(process: "subprocess.Popen[str]", web: Web) -> str:
    """Return the URL that the suite prints for a person to open."""
    assert process.stdout is not None
    return next(
        line.strip() for line in process.stdout if line.startswith(f"{web.url}/oauth/authorize?")
    )


@pytest.mark.parametrize(
    "revision",
    AUTHORIZATION_REVISIONS if CONFORMANCE == "whole" else AUTHORIZATION_REVISIONS[::3],
)
def test_the_authorization_server_conforms(
    revision: str, oauth_web: Web, person: Person, free_port: int, tmp_path: Path
) -> None:
    client_id = register_client(oauth_web, free_port)
    arguments = ("--url", oauth_web.url, "--client-id", client_id, "--port", str(free_port))
    with start_conformance(
        *("authorization", *arguments, "--resource", person.resource, "--spec-version", revision),
        cwd=tmp_path,
    ) as process:
        person.authorize(read_authorization_url(process, oauth_web))
        output = process.communicate(timeout=LONGEST_S)[0]
    passed = re.findall(r"^✓ (\S+): \d+ passed, 0 failed$", output, re.MULTILINE)
    assert passed == list(AUTHORIZATION_SERVER), output
    assert process.returncode == 0, output
