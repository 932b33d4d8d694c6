"""Fixtures of the authorization server's tests."""

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.oauth_server import client_registration
from tests.agents import casting
from tests.bonobot.authority.program import Program
from tests.bonobot.gateway.conftest import acme, effects, helper, wire, workshop

__all__ = ["acme", "effects", "helper", "wire", "workshop"]


@pytest.fixture(autouse=True)
def _nobody_registered() -> None:
    client_registration._taken.clear()


@pytest.fixture
def olga(acme: Organization) -> User:
    casting.person(acme, Role.OWNER, "owner")
    return User.objects.get(pk=casting.person(acme, Role.OPERATOR, "olga").id)


@pytest.fixture
def ide(olga: User, helper: Agent) -> Program:
    return Program(olga)
