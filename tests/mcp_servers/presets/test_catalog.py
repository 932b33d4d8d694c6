"""The shipped catalog is valid, and each entry can be added."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import find
from hypothesis.strategies import from_regex

from bonobot.core.problems import InvalidInput
from bonobot.core.text.placeholders import list_placeholders
from mcp_servers.launchers import check_launcher
from mcp_servers.models import Preset
from mcp_servers.presets import catalog as preset_catalog
from mcp_servers.presets.catalog import (
    CatalogEntry,
    InvalidCatalog,
    fill_preset,
    load_catalog,
    parse_catalog,
)
from mcp_servers.presets.logos import LOGOS
from mcp_servers.scanning import scan_definition
from mcp_servers.scanning.definitions import RESEMBLANCE_RULE

LAUNCHERS = {"npx", "uvx"}
ICONS = Path("bonobot/static/bonobot/presets/icons.svg")
LOGO_SYMBOLS = Path("bonobot/static/bonobot/presets/logos.svg")


def list_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [text for item in inner for text in list_texts(item)]


def list_placeholder_names(value: Any) -> set[str]:
    return {
        placeholder.name for text in list_texts(value) for placeholder in list_placeholders(text)
    }


def test_the_catalog_has_enough_presets() -> None:
    slugs = [entry.slug for entry in load_catalog()]
    assert len(slugs) >= 40
    assert len(set(slugs)) == len(slugs)
    assert {"everything", "filesystem", "time", "git", "fetch", "azure"} <= set(slugs)


def test_each_parameter_is_used_and_each_reference_declared() -> None:
    for entry in load_catalog():
        declared = {parameter["name"] for parameter in entry.parameters}
        assert len(declared) == len(entry.parameters), entry.slug
        used = list_placeholder_names([entry.endpoint_config, entry.auth_config])
        assert used == declared, entry.slug


def test_secrets_are_only_in_encrypted_fields() -> None:
    for entry in load_catalog():
        hidden = {parameter["name"] for parameter in entry.parameters if parameter["secret"]}
        open_parts = [
            value for name, value in entry.endpoint_config.items() if name not in ("env", "headers")
        ]
        assert not hidden & list_placeholder_names(open_parts), entry.slug


def test_each_package_is_pinned_to_the_tested_version() -> None:
    for entry in load_catalog():
        if entry.transport_type == "http":
            assert entry.proof["kind"] == "documentation", entry.slug
            continue
        command, args = entry.endpoint_config["command"], entry.endpoint_config["args"]
        assert check_launcher(command, args, allowed_launchers=LAUNCHERS) == (), entry.slug
        assert f"{entry.proof['package']}@{entry.proof['version']}" in args, entry.slug
        assert command == {"npm": "npx", "pypi": "uvx"}[entry.proof["registry"]], entry.slug
        assert entry.program, entry.slug


def test_no_entry_contains_hidden_characters() -> None:
    # The classifier is for declarations of tools, not for forms.
    assert [
        (entry.slug, finding)
        for entry in load_catalog()
        for finding in scan_definition(entry.to_columns())
        if finding.rule != RESEMBLANCE_RULE
    ] == []


def test_each_entry_can_be_filled_from_its_form() -> None:
    for entry in load_catalog():
        check_filled_entry(entry)


@cache  # many entries have the same patterns
def find_match(pattern: str) -> str:
    """Return the simplest text that matches a pattern."""
    return find(from_regex(pattern, fullmatch=True), lambda _: True)


def check_filled_entry(entry: CatalogEntry) -> None:
    """Fill the form of an entry with values that match the patterns."""
    values = {
        parameter["name"]: find_match(parameter.get("pattern", "value"))
        for parameter in entry.parameters
        if parameter["required"] and not parameter["default"]
    }
    spec = fill_preset(entry, values, name="mine", allow_private=False)
    assert (spec.name, spec.transport_type) == ("mine", entry.transport_type), entry.slug
    assert list_placeholder_names([spec.endpoint_config, spec.auth_config]) == set(), entry.slug
    assert spec.auth_config is not None
    assert spec.auth_config["type"] == entry.auth_type, entry.slug


def test_each_icon_exists() -> None:
    symbols = set(re.findall(r'<symbol id="([^"]+)"', ICONS.read_text(encoding="utf-8")))
    assert {entry.icon for entry in load_catalog()} <= symbols


@pytest.mark.parametrize(
    "name",
    ["s3", "bedrock-kb", "dynamodb", "lambda", "cloudwatch-logs"],
)
def test_missing_packages_are_mapped_to_existing_ones(name: str) -> None:
    package = f"@aws/mcp-server-{name}"
    assert [entry.slug for entry in load_catalog() if package in entry.replaces]
    assert not [entry.slug for entry in load_catalog() if entry.proof.get("package") == package]


def test_secrets_of_a_preset_are_stored_in_their_fields() -> None:
    (github,) = (entry for entry in load_catalog() if entry.slug == "github")
    spec = fill_preset(github, {"github_token": "t-1"})
    assert spec.name == "github"
    assert spec.auth_config == {"type": "bearer_token", "token": "t-1"}
    (aws,) = (entry for entry in load_catalog() if entry.slug == "aws-cloudwatch")
    assert fill_preset(aws, {"AWS_REGION": "eu-central-1"}).endpoint_config["env"] == {
        "AWS_REGION": "eu-central-1"
    }


def test_all_missing_values_are_reported_together() -> None:
    (azure,) = (entry for entry in load_catalog() if entry.slug == "azure")
    with pytest.raises(InvalidInput) as caught:
        fill_preset(azure, {"AZURE_TENANT_ID": "t"})
    assert caught.value.code == "missing_value"
    assert [error["field"] for error in caught.value.as_dict()["errors"]] == [
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
    ]


def test_the_fields_of_an_entry_are_those_of_the_model() -> None:
    from mcp_servers.models import Preset

    fields = {field.name for field in Preset._meta.get_fields()}
    assert all(entry.to_columns().keys() <= fields for entry in load_catalog())


@pytest.mark.parametrize(
    ("change", "location"),
    [
        ({"slug": "Not A Slug"}, "$.presets[0].slug"),
        ({"category": "misc"}, "$.presets[0].category"),
        ({"proof": {"kind": "hearsay"}}, "$.presets[0].proof"),
        ({"endpoint_config": {"command": "npx"}}, "$.presets[0].endpoint_config.args"),
        ({"surprise": 1}, "$.presets[0].surprise"),
    ],
)
def test_an_invalid_catalog_is_reported_with_its_location(
    change: dict[str, Any], location: str
) -> None:
    document = json.loads((preset_catalog.FOLDER / "catalog.json").read_text(encoding="utf-8"))
    document["presets"] = [document["presets"][0] | change]
    with pytest.raises(InvalidCatalog, match="isn't valid at") as caught:
        parse_catalog(json.dumps(document))
    assert caught.value.field.startswith(location)
    assert f"(preset {document['presets'][0]['slug']!r})" in str(caught.value)


def test_a_catalog_that_is_not_json_is_reported() -> None:
    with pytest.raises(InvalidCatalog, match="isn't valid JSON"):
        parse_catalog("{,}")


def test_each_logo_belongs_to_a_preset_and_is_in_the_file() -> None:
    symbols = set(re.findall(r'<symbol id="([^"]+)"', LOGO_SYMBOLS.read_text(encoding="utf-8")))
    assert symbols == set(LOGOS.values())
    assert set(LOGOS) <= {entry.slug for entry in load_catalog()}
    assert "CC0" in LOGO_SYMBOLS.with_name("logos-license.md").read_text(encoding="utf-8")


def test_only_presets_of_the_catalog_have_a_logo() -> None:
    organization_id = uuid4()
    assert Preset(slug="github").logo == "github"
    assert Preset(slug="github", organization_id=organization_id).logo == ""
    assert Preset(slug="filesystem").logo == ""
