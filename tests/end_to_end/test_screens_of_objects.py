"""The screens of objects in a real browser; all others are in `test_screens.py`.

They are a file of their own so that two processes share the work.
"""

import pytest
from pytest_django.live_server_helper import LiveServer

from tests.end_to_end.test_screens import open_screens
from tests.screens import ADDRESSES

pytestmark = [pytest.mark.browser, pytest.mark.npm, pytest.mark.django_db(transaction=True)]


def test_axe_finds_nothing_serious_on_the_screens_of_objects(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    faults: list[str] = []
    addresses = [(name, parameters) for name, parameters in ADDRESSES if parameters]
    with open_screens(live_server.url, addresses, faults):
        pass
    assert not faults, "\n".join(faults)
