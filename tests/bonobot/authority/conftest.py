"""Fixtures of the authorization server's tests."""

import pytest

from agents.models import Agent
from bonobot.authority import registering
from bonobot.tenancy.models import Organization, User
from bonobot.tenancy.roles import Role
from tests.agents import casting
from tests.bonobot.authority.program import Program
from tests.bonobot.gateway.conftest import acme, effects, helper, wire, workshop

__all__ = ["acme", "effects", "helper", "wire", "workshop"]


@pytest.fixture(autouse=True)
def _nobody_registered() -> None:
    registering._taken.clear()


@pytest.fixture
def olga(acme: Organization) -> User:
    casting.person(acme, Role.OWNER, "owner")
    return User.objects.get(pk=casting.person(acme, Role.OPERATOR, "olga").id)


@pytest.fixture
def ide(olga: User, helper: Agent) -> Program:
    return Program(olga)
