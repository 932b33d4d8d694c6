"""Fixtures of the authorization server's tests."""

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.oauth_server import client_registration
from tests import factories
from tests.agents.gateway.conftest import acme, effects, gateway_client, helper, workshop
from tests.bonobot.oauth_server.oauth_client import OAuthClient

__all__ = ["acme", "effects", "gateway_client", "helper", "workshop"]


@pytest.fixture(autouse=True)
def _clear_registrations() -> None:
    client_registration._arrival_times.clear()


@pytest.fixture
def olga(acme: Organization) -> User:
    factories.create_member(acme, Role.OWNER, "owner")
    return User.objects.get(pk=factories.create_member(acme, Role.OPERATOR, "olga").id)


@pytest.fixture
def ide(olga: User, helper: Agent) -> OAuthClient:
    return OAuthClient(olga)
