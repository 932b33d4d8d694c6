"""Every feature is in the admin, in REST and on the command line, or has a reason why not."""

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
# A page of Django that every object has.
OF_EVERY_MODEL = ("history",)
PERMISSIONS = {"add": "has_add_permission", "change": "has_change_permission"} | {
    "delete": "has_delete_permission"
}


@pytest.fixture
def admin_request(db: None) -> HttpRequest:
    """Return a request of a platform administrator in an organization."""
    factories.create_organization()
    browser = admin_client.AdminClient(User.objects.create_superuser("root", password="pw"))
    request: HttpRequest = browser.client.get(admin_client.build_url("index")).wsgi_request
    return request


def list_url_names(patterns: Any) -> Iterator[str]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from list_url_names(pattern.url_patterns)
        elif isinstance(pattern, URLPattern) and pattern.name:
            yield pattern.name


def list_admin_actions(request: HttpRequest) -> set[str]:
    """Return the pages and actions of the admin for a platform administrator."""
    names, models = set(), {}
    for model, model_admin in admin.site._registry.items():
        meta = model._meta
        models[f"{meta.app_label}_{meta.model_name}_"] = (meta.model_name, model_admin)
        names |= {
            f"{meta.model_name}!{action if isinstance(action, str) else action.__name__}"
            for action in model_admin.actions or ()
        }
    for name in list_url_names(admin.site.get_urls()):
        owner = next((prefix for prefix in models if name.startswith(prefix)), None)
        if owner is None:
            names.add(name.removeprefix("auth_"))
            continue
        short, model_admin = models[owner]
        view = name.removeprefix(owner)
        allowed = getattr(model_admin, PERMISSIONS.get(view, ""), lambda request: True)
        if view not in OF_EVERY_MODEL and allowed(request):
            names.add(f"{short}.{'list' if view == 'changelist' else view}")
    return names


def list_rest_operations() -> set[str]:
    """Return the operations of REST."""
    paths = rest.build_document()["paths"].values()
    return {operation["operationId"] for methods in paths for operation in methods.values()}


def list_command_names() -> set[str]:
    """Return the verbs of our commands, and the commands without verbs."""
    names = set()
    for name in (name for name, app in get_commands().items() if app == "bonobot"):
        command = load_command_class("bonobot", name)
        verbs = [verb.name for verb in command.verbs] if isinstance(command, CommandGroup) else []
        names |= {f"{name} {verb}" for verb in verbs} or {name}
    return names


def list_documented_names(surface: str) -> set[str]:
    return {name for feature in FEATURES for name in feature.names[surface]}


def list_existing_names(surface: str, request: HttpRequest) -> set[str]:
    if surface == "admin":
        return list_admin_actions(request)
    return list_rest_operations() if surface == "rest" else list_command_names()


@pytest.mark.parametrize("surface", SURFACES)
def test_every_action_of_the_code_is_in_the_table(admin_request: HttpRequest, surface: str) -> None:
    missing = sorted(list_existing_names(surface, admin_request) - list_documented_names(surface))
    assert ", ".join(missing) == "", "add each to a row of docs/making/surface_table"


@pytest.mark.parametrize("surface", SURFACES)
def test_every_action_of_the_table_exists(admin_request: HttpRequest, surface: str) -> None:
    removed = sorted(list_documented_names(surface) - list_existing_names(surface, admin_request))
    assert ", ".join(removed) == "", "rename or remove them in docs/making/surface_table"


def test_an_action_has_all_three_surfaces_or_a_reason() -> None:
    unexplained = [
        feature.what
        for feature in FEATURES
        if not all(feature.names[surface] for surface in SURFACES) and not feature.why.endswith(".")
    ]
    assert not unexplained, "give their rows a sentence in `why` in docs/making/surface_table"


def test_actions_are_listed_once() -> None:
    counts = Counter(feature.what for feature in FEATURES)
    repeated = [name for name, times in counts.items() if times > 1]
    assert not repeated, "join their rows in docs/making/surface_table"


def test_the_documentation_page_matches_the_table() -> None:
    assert surfaces.PAGE.read_text(encoding="utf-8") == surfaces.page(), (
        "run `python -m docs.making.surfaces`"
    )
