"""What a process loads at startup, and what it loads on demand."""

import subprocess
import sys

from django.contrib.admin import site
from django.core.checks import Tags, registry

from bonobot.admin_pages import check_admin_pages

LOADED = """
import sys
import django
django.setup()
heavy = {"agents.admin.agents", "agents.admin.site", "bonobot.urls", "mcp",
         "rest_framework.views"}
print(sorted(heavy & set(sys.modules)))
"""


def test_admin_pages_and_urls_are_loaded_only_by_web_processes() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_admin_checks_cover_all_pages() -> None:
    assert check_admin_pages in registry.registry.get_checks()
    assert Tags.admin in check_admin_pages.tags  # type: ignore[attr-defined]  # `register` adds it
    assert check_admin_pages(None) == []
    assert len(site._registry) > 20
