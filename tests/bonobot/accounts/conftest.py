"""Fixtures of the accounts tests."""

import pytest

from tests.own_cache import clear_cache


@pytest.fixture(autouse=True)
def _clear_attempts() -> None:
    """Clear used codes and attempts of other tests: their users can have the same IDs."""
    clear_cache()
