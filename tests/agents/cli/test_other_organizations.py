"""Each verb acts in one organization: `--org` never reaches the objects of another one.

The command line has no users or roles: those who can run it read the database and the keys, so it
acts as a platform administrator (`build_command_principal`). What remains is the organization.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from bonobot.accounts.cli.principals import build_command_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Action
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.cli.example_organization import CALLS
from tests.agents.cli.test_every_command import (
    GROUPS,
    _no_color,
    _standard_input,
    _successful_webhooks,
    acme,
    values,
)
from tests.command_line import Bonobot

__all__ = ["_no_color", "_standard_input", "_successful_webhooks", "acme", "values"]

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def other_organization(acme: Organization, values: Mapping[str, str]) -> Organization:
    return factories.create_organization("other")


@cache
def list_models() -> dict[str, Any]:
    """Return the models whose rows belong to an organization, by their names."""
    return {
        model.__name__: model
        for model in apps.get_models()
        if any(field.name == "organization" for field in model._meta.get_fields())
    }


@cache
def build_rows_sql() -> str:
    """Return a query for the names of models and the keys of rows, with a value for each model."""
    quote = connection.ops.quote_name
    return " UNION ALL ".join(
        f"SELECT '{name}', CAST({quote(model._meta.pk.column)} AS TEXT)"  # noqa: S608  # our own names
        f" FROM {quote(model._meta.db_table)}"
        f" WHERE {quote(model._meta.get_field('organization').column)} = %s"
        for name, model in list_models().items()
    )


def list_rows(organization: Organization) -> set[tuple[str, str]]:
    """Return the names and keys of all rows of an organization (one query for all models)."""
    models = list_models()
    value = (
        models["Agent"]
        ._meta.get_field("organization")
        .get_db_prep_value(organization.pk, connection)
    )
    with connection.cursor() as cursor:
        cursor.execute(build_rows_sql(), [value] * len(models))
        rows = cursor.fetchall()
    return {(name, str(models[name]._meta.pk.to_python(key))) for name, key in rows}


def read_state(organization: Organization) -> tuple[Any, ...]:
    return list_rows(organization), AuditRow.objects.filter(organization_id=organization.pk).count()


@pytest.mark.parametrize("group", [name for name in GROUPS if name != "org"])
def test_a_verb_doesnt_reach_the_objects_of_another_organization(
    group: str,
    acme: Organization,
    other_organization: Organization,
    values: Mapping[str, str],
    bonobot: Bonobot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BONOBOT_TOKEN", raising=False)  # `mcp serve` acts for the token's holder
    state = read_state(acme)
    foreign_ids = {key for _model, key in state[0] if UUID.fullmatch(key)}
    for verb in GROUPS[group].verbs:
        name = f"{group} {verb.name}"
        arguments = CALLS[name].build_arguments(7, values)
        result = bonobot(group, verb.name, *arguments, "--org", other_organization.slug, "--json")
        shown = set(UUID.findall(result.out + result.err)) - set(UUID.findall(" ".join(arguments)))
        assert (name, shown & foreign_ids) == (name, set())
        assert (name, read_state(acme) == state) == (name, True)
        if any(argument.startswith("@") for argument in {*CALLS[name].args} - {"@url"}):
            assert (name, result.status) == (name, 1), result.out


def test_the_command_line_acts_as_a_platform_administrator_of_one_organization(
    db: None,
) -> None:
    with pytest.raises(NotFound):
        build_command_principal(None)
    only = factories.create_organization("only")
    principal = build_command_principal(None)
    assert (principal.kind, principal.organization_id) == ("cli", only.pk)
    assert all(principal.may(action) for action in Action)
    factories.create_organization("second")
    with pytest.raises(InvalidInput):
        build_command_principal(None)
    with pytest.raises(NotFound):
        build_command_principal("nobody")


def test_no_environment_variable_or_option_changes_who_the_command_line_is(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = factories.create_organization("only")
    for name in ("BONOBOT_TOKEN", "BONOBOT_USER", "BONOBOT_ROLE", "LOGNAME", "USER"):
        monkeypatch.setenv(name, "owner")
    principal = build_command_principal(only.slug)
    assert (principal.platform_admin, principal.label) == (True, "cli:owner")
