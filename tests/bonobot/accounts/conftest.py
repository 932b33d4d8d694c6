"""What tests of accounts share."""

import pytest

from tests.own_cache import clear_cache


@pytest.fixture(autouse=True)
def _no_codes_of_other_tests() -> None:
    """Forget which codes and guesses other tests used: their users can have the same ids."""
    clear_cache()
