"""Every feature has its names in the admin, over REST and on the command line, or says why not."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.core.management import get_commands, load_command_class
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver

from bonobot.accounts.models import User
from bonobot.core.cli.command_group import CommandGroup
from docs.making import surfaces
from docs.making.surface_table import FEATURES
from tests import admin_client, factories, rest

SURFACES = ("admin", "rest", "cli")
# A page of Django's that every object has.
OF_EVERY_MODEL = ("history",)
GUARDED = {"add": "has_add_permission", "change": "has_change_permission"} | {
    "delete": "has_delete_permission"
}


@pytest.fixture
def boss(db: None) -> HttpRequest:
    """Return a request of a platform administrator in an organization."""
    factories.create_organization()
    browser = admin_client.Desk(User.objects.create_superuser("root", password="pw"))
    request: HttpRequest = browser.client.get(admin_client.url("index")).wsgi_request
    return request


def addresses(patterns: Any) -> Iterator[str]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern.url_patterns)
        elif isinstance(pattern, URLPattern) and pattern.name:
            yield pattern.name


def of_the_admin(request: HttpRequest) -> set[str]:
    """Return the addresses and actions of the admin that a platform administrator has."""
    found, models = set(), {}
    for model, screen in admin.site._registry.items():
        meta = model._meta
        models[f"{meta.app_label}_{meta.model_name}_"] = (meta.model_name, screen)
        found |= {
            f"{meta.model_name}!{action if isinstance(action, str) else action.__name__}"
            for action in screen.actions or ()
        }
    for name in addresses(admin.site.get_urls()):
        owner = next((prefix for prefix in models if name.startswith(prefix)), None)
        if owner is None:
            found.add(name.removeprefix("auth_"))
            continue
        short, screen = models[owner]
        view = name.removeprefix(owner)
        allowed = getattr(screen, GUARDED.get(view, ""), lambda request: True)
        if view not in OF_EVERY_MODEL and allowed(request):
            found.add(f"{short}.{'list' if view == 'changelist' else view}")
    return found


def of_rest() -> set[str]:
    """Return the operations of REST."""
    paths = rest.document()["paths"].values()
    return {operation["operationId"] for methods in paths for operation in methods.values()}


def of_the_command_line() -> set[str]:
    """Return the verbs of our commands, and the commands that have none."""
    found = set()
    for name in (name for name, app in get_commands().items() if app == "bonobot"):
        command = load_command_class("bonobot", name)
        verbs = [verb.name for verb in command.verbs] if isinstance(command, CommandGroup) else []
        found |= {f"{name} {verb}" for verb in verbs} or {name}
    return found


def told(surface: str) -> set[str]:
    return {name for feature in FEATURES for name in feature.names[surface]}


def there_is(surface: str, request: HttpRequest) -> set[str]:
    if surface == "admin":
        return of_the_admin(request)
    return of_rest() if surface == "rest" else of_the_command_line()


@pytest.mark.parametrize("surface", SURFACES)
def test_every_action_of_the_code_is_in_the_table(boss: HttpRequest, surface: str) -> None:
    missing = sorted(there_is(surface, boss) - told(surface))
    assert ", ".join(missing) == "", "give each a row in docs/making/surface_table, with its twins"


@pytest.mark.parametrize("surface", SURFACES)
def test_every_action_of_the_table_exists(boss: HttpRequest, surface: str) -> None:
    gone = sorted(told(surface) - there_is(surface, boss))
    assert ", ".join(gone) == "", "rename them in docs/making/surface_table, or take them out"


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.what)
def test_an_action_has_all_three_surfaces_or_a_reason(feature: Any) -> None:
    lacks = [surface for surface in SURFACES if not feature.names[surface]]
    assert not lacks or feature.why.endswith("."), f"{feature.what} has nothing in {lacks}"


def test_actions_are_listed_once() -> None:
    assert [
        what for what, times in Counter(feature.what for feature in FEATURES).items() if times > 1
    ] == []


def test_the_documentation_page_matches_the_table() -> None:
    assert surfaces.PAGE.read_text(encoding="utf-8") == surfaces.page(), (
        "run `python -m docs.making.surfaces`"
    )
