"""Fixtures of the accounts tests."""

from collections.abc import Iterator
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from bonobot.accounts.models import User
from bonobot.accounts.roles import Role
from tests import factories
from tests.own_cache import clear_cache


@pytest.fixture(autouse=True)
def _clear_attempts() -> None:
    """Clear used codes and attempts of other tests: their users can have the same IDs."""
    clear_cache()


@pytest.fixture
def stopped_clock() -> Iterator[None]:
    """Stop the clock, so that no attempt comes back while a test uses them up, however slowly."""
    with time_machine.travel(timezone.now(), tick=False):
        yield


@pytest.fixture
def account_mail(settings: Any) -> Iterator[None]:
    """Configure a mail server."""
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def over_tls(settings: Any) -> Iterator[None]:
    """Use TLS, where the origin of a passkey is checked, and clear the attempts."""
    settings.MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = False
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def anna() -> User:
    """Return the owner of a new organization."""
    acme = factories.create_organization()
    return User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)
