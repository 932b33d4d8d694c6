"""The screens of objects in a real browser; all others are in `test_screens.py`.

They are in their own file so that two processes can share the work.
"""

import pytest
from playwright.sync_api import Browser

from tests.end_to_end.test_screens import FORMS, WEB_SETTINGS, open_screens
from tests.processes import Web
from tests.screens import ADDRESSES

__all__ = ["WEB_SETTINGS"]
pytestmark = [pytest.mark.browser, pytest.mark.npm, pytest.mark.whole]


def test_axe_finds_nothing_serious_on_the_screens_of_objects(
    module_web: Web, module_browser: Browser
) -> None:
    faults: list[str] = []
    addresses = [(name, parameters) for name, parameters in ADDRESSES if parameters]
    browser, url = module_browser, module_web.url
    with open_screens(browser, url, addresses, faults, checked_elsewhere=FORMS):
        pass
    assert not faults, "\n".join(faults)
