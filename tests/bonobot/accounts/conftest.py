"""Fixtures of the accounts tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from bonobot.accounts import tasks
from tests.own_cache import clear_cache


@pytest.fixture(autouse=True)
def _clear_attempts() -> None:
    """Clear used codes and attempts of other tests: their users can have the same IDs."""
    clear_cache()


@pytest.fixture
def account_mail(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Configure a mail server, and run the jobs that mail people about their account at once."""
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"
    for task in (tasks.send_account_change_email, tasks.send_reset_review_email):
        monkeypatch.setattr(task, "delay", task)
    clear_cache()
    yield
    clear_cache()
