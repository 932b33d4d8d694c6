"""What each role may see and do in the admin: role × page, form and action, the same as over REST.

`test_admin_pages` compares the pages, this module the forms and actions. The expectation is
computed from `docs/making/surface_table` and the rules of REST: a role may open a page or run an
action if REST allows it an operation of the same row. What REST doesn't have is in `WITHOUT_REST`,
so an action that is in neither makes a test fail.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
import pytest_django
from django.contrib.admin import helpers, site
from django.db import transaction
from django.urls import reverse

from agents.services import delete_agent
from bonobot.accounts.admin_base.form_versions import parse_forms
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import ROLE_ACTIONS, Action, Role
from bonobot.ledger.models import AuditRow
from docs.making.surface_table import FEATURES
from tests import admin_client, factories, rest
from tests.bonobot.test_admin_versions import read_fields
from tests.bonobot.test_api_matrix import OPERATIONS, is_allowed
from tests.screens import (
    ABSENT,
    ADDRESSES,
    build_address,
    create_objects,
    render_without_signals,
    share_rows,
)

EVERYONE = frozenset(Role)
NOBODY: frozenset[Role] = frozenset()
REFUSED = (403, 404, 405)


def list_roles(*actions: Action) -> frozenset[Role]:
    """Return the roles that may do one of these actions."""
    return frozenset(role for role in Role if ROLE_ACTIONS[role] & {*actions})


# Pages of rows without an operation of REST, and who may use them.
WITHOUT_REST: dict[str, frozenset[Role]] = {
    **dict.fromkeys(("server.bulk_job", "settings", "index"), list_roles(Action.VIEW)),
    **dict.fromkeys(
        (
            f"auditrow.{name}"
            for name in ("save_filter", "remove_filter", "names", "verify", "verification")
        ),
        list_roles(Action.VIEW_AUDIT),
    ),
    **dict.fromkeys((f"launcher.{name}" for name in ("list", "add", "change", "delete")), NOBODY),
    **dict.fromkeys((f"user.{name}" for name in ("list", "add", "change")), NOBODY),
    **dict.fromkeys(("periodictask.list", "periodictask.change"), NOBODY),
    **dict.fromkeys(
        ("organization.add", "membership.add", "settings_check", "user_password_change"), NOBODY
    ),
    # People sign in to servers with their own accounts; what belongs to oneself.
    "server.connect": list_roles(Action.MANAGE_SERVERS),
    **dict.fromkeys(("profile_email", "profile_confirm_email"), EVERYONE),
    **dict.fromkeys(("profile_link", "profile_unlink"), EVERYONE),
    **dict.fromkeys(("switch_organization", "search", "palette", "live"), EVERYONE),
    **dict.fromkeys(("login", "logout", "password_change", "password_change_done"), EVERYONE),
    **dict.fromkeys(("app_list", "autocomplete", "jsi18n", "view_on_site"), EVERYONE),
}
# Pages that also show, read-only, what another row shows to these roles, or redirect to it.
READ_ONLY: dict[str, frozenset[Role]] = {
    **dict.fromkeys(("agent.skills", "agent.workflows"), list_roles(Action.VIEW)),
    **dict.fromkeys(
        ("server.configuration", "server.credentials", "server.arguments"), list_roles(Action.VIEW)
    ),
    "organization_kill_switch": list_roles(Action.VIEW),
    "index": EVERYONE,
}
# An address of before that shows the forms of another.
MOVED = {"server.definitions": "server.tools"}
# Pages that Django has for every model, and that ours turn off or redirect to the audit log.
CLOSED_PAGES = ("add", "change", "delete", "history")


def list_roles_by_operation() -> dict[str, frozenset[Role]]:
    """Return the roles that REST allows each operation, by its ID."""
    routes = {
        ("/api/" + re.sub(r"<str:(\w+)>", r"{\1}", route), method): frozenset(
            role for role in Role if is_allowed(role, route, method)
        )
        for route, method in OPERATIONS
    }
    return {
        operation["operationId"]: routes.get((path, method.upper()), NOBODY)
        for path, methods in rest.build_document()["paths"].items()
        for method, operation in methods.items()
    }


def list_expected_roles() -> dict[str, frozenset[Role]]:
    """Return the roles that may use a page or an action of the admin, by its name in the table."""
    by_operation, expected = list_roles_by_operation(), dict(WITHOUT_REST)
    for feature in FEATURES:
        if feature.names["rest"]:
            roles = NOBODY.union(*(by_operation[name] for name in feature.names["rest"]))
            for name in feature.names["admin"]:
                expected[name] = expected.get(name, NOBODY) | roles
    return expected


PREFIXES = {
    f"{model._meta.app_label}_{model._meta.model_name}_": str(model._meta.model_name)
    for model in site._registry
}


def get_table_name(name: str) -> str:
    """Return the name that the table has for a URL name of the admin."""
    for prefix, model in PREFIXES.items():
        if name.startswith(prefix):
            page = name.removeprefix(prefix)
            return f"{model}.{'list' if page == 'changelist' else page}"
    return name.removeprefix("auth_")


@dataclass
class FilledOrganization:
    """An organization with one of everything, and a browser for each role."""

    organization: Organization
    ids: dict[str, UUID]
    browsers: dict[Role | None, admin_client.AdminClient]

    def send(self, role: Role | None, method: str, path: str, values: Any = None) -> int:
        """Return the status of a request; its changes are rolled back."""
        with transaction.atomic():
            response = getattr(self.browsers[role].client, method)(path, values)
            transaction.set_rollback(True)
        return int(response.status_code)


@pytest.fixture(scope="module")
def shared_organization(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[FilledOrganization]:
    with share_rows(django_db_blocker):
        organization = factories.create_organization()
        ids = create_objects(organization)
        deleted_agent = factories.create_agent(organization, "deleted")
        deletion = delete_agent(factories.build_administrator(organization), deleted_agent)
        assert deletion is not None
        ids["tenancy_deletion"] = deletion.pk
        browsers = {role: admin_client.sign_in(organization, role) for role in (None, *Role)}
        yield FilledOrganization(organization, ids, browsers)


@pytest.fixture
def example(shared_organization: FilledOrganization) -> Iterator[FilledOrganization]:
    with transaction.atomic(), render_without_signals():
        yield shared_organization
        transaction.set_rollback(True)


def test_every_page_and_action_has_an_expectation() -> None:
    expected = list_expected_roles()
    missing = [
        name
        for name in (get_table_name(name) for name, _parameters in ADDRESSES)
        if name not in expected and name.rpartition(".")[2] not in CLOSED_PAGES
    ]
    assert not missing, f"add a row of surface_table with `rest`, or to WITHOUT_REST: {missing}"
    documented = {name for feature in FEATURES for name in feature.names["admin"]}
    assert READ_ONLY.keys() <= expected.keys()
    assert documented - expected.keys() == set()
    assert WITHOUT_REST.keys() - documented == set()


# Roles whose forms are compared: each lacks something that the one before may do.
FORM_ROLES = (Role.OPERATOR, Role.REVIEWER, Role.AUDITOR)
# Forms of the person's own account.
OWN_FORMS = frozenset({"profile", "password_change", "profile_sessions", "authorized_clients"})


def list_forms(example: FilledOrganization) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each form that a platform administrator sees: its page, its path and its fields."""
    client = example.browsers[None].client
    for name, parameters in ADDRESSES:
        path = build_address(name, parameters, example.ids)
        response = client.get(path)
        if name in ABSENT or response.streaming or response.status_code != 200:
            continue
        text = response.content.decode()
        if "<html" in text:
            for form in parse_forms(text, path.partition("?")[0]):
                yield get_table_name(name), path, read_fields(text, form)


@pytest.mark.whole
def test_a_filled_in_form_changes_nothing_for_roles_that_rest_refuses(
    example: FilledOrganization,
) -> None:
    """What only a more privileged person's page contains, sent with the session of another."""
    by_operation, faults, sent = list_roles_by_operation(), [], 0
    reads = re.compile(r"(list|get|export|explain|simulate|preview|render)_")
    writers = {
        name: NOBODY.union(
            *(
                by_operation[operation]
                for feature in FEATURES
                if name in feature.names["admin"]
                for operation in feature.names["rest"]
                if not reads.match(operation)
            ),
            WITHOUT_REST.get(name, NOBODY),
        )
        for name in list_expected_roles()
    }
    for page, path, values in [*list_forms(example)]:
        for role in FORM_ROLES:
            if role in writers.get(MOVED.get(page, page), NOBODY) or page in OWN_FORMS:
                continue
            before, sent = AuditRow.objects.count(), sent + 1
            with transaction.atomic():
                response = example.browsers[role].client.post(path, values)
                changed = AuditRow.objects.exclude(outcome=AuditRow.Outcome.REFUSED).count()
                changed -= before
                transaction.set_rollback(True)
            if changed or response.status_code == 302:
                faults.append(f"{role} {page}: {response.status_code}, {changed} changes")
    assert sent > 40
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("role", FORM_ROLES)
def test_a_list_action_is_refused_to_roles_that_rest_refuses(
    example: FilledOrganization, role: Role
) -> None:
    expected, faults, sent = list_expected_roles(), [], 0
    for model, model_admin in site._registry.items():
        meta = model._meta
        key = f"{meta.app_label}_{meta.model_name}"
        for action in model_admin.actions or ():
            name = action if isinstance(action, str) else action.__name__
            assert f"{meta.model_name}!{name}" in expected, f"{meta.model_name}!{name}"
            if role in expected[f"{meta.model_name}!{name}"]:
                continue
            sent += 1
            values = {"action": name, helpers.ACTION_CHECKBOX_NAME: [str(example.ids[key])]}
            status = example.send(role, "post", reverse(f"admin:{key}_changelist"), values)
            faults += [f"{meta.model_name}!{name}: {status}"] * (status not in REFUSED)
    assert sent > 5
    assert not faults, "\n".join(faults)
