"""Fixtures of the accounts tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.own_cache import clear_cache


@pytest.fixture(autouse=True)
def _clear_attempts() -> None:
    """Clear used codes and attempts of other tests: their users can have the same IDs."""
    clear_cache()


@pytest.fixture
def account_mail(settings: Any) -> Iterator[None]:
    """Configure a mail server."""
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"
    clear_cache()
    yield
    clear_cache()
