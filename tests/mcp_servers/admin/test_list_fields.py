"""Form fields for lists and mappings of strings."""

import re
import sys
from html import unescape

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.admin.list_fields import KeyValueLinesField, StringListField
from mcp_servers.presets.services import PresetSpec, create_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories

CONFIGURATION = "mcp_servers_server_configuration"
STDIO = {
    "name": "script",
    "transport_type": "stdio",
    "auth_type": "none",
    "approval": "manual",
    "sandbox": "none",
    "enabled": "on",
}

SCRIPT = 'line1 = "a"\n\n  line2'
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [SCRIPT, "", " a ", "[", '["a"]', "{", '{"a": "b"}', "a=b", "\r\n", "\x85", "\u2028"]
)


def submit(text: str) -> str:
    """Return the text of a text area as browsers submit it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")


@given(st.lists(TEXT))
def test_any_list_of_strings_is_unchanged_by_an_unchanged_field(strings: list[str]) -> None:
    field = StringListField(required=False)
    assert field.clean(submit(field.prepare_value(strings))) == strings


@given(st.dictionaries(TEXT, TEXT | st.lists(TEXT)))
def test_any_mapping_is_unchanged_by_an_unchanged_field(pairs: dict[str, str]) -> None:
    field = KeyValueLinesField("Headers", "", "")
    assert field.clean(submit(field.prepare_value(pairs))) == pairs


@pytest.mark.parametrize(
    ("strings", "text"),
    [
        (["-y", "clock@1.0.0"], "-y\nclock@1.0.0"),
        (["-c", "a\nb"], '[\n  "-c",\n  "a\\nb"\n]'),
        (["[a-z]"], '[\n  "[a-z]"\n]'),
        ([], ""),
    ],
)
def test_a_list_is_shown_as_lines_unless_only_json_represents_it(
    strings: list[str], text: str
) -> None:
    assert StringListField().prepare_value(strings) == text


@pytest.mark.parametrize("text", ['["-c"', "[1]", "[" * 100_000, "[a-z]"])
def test_an_invalid_json_array_is_rejected(text: str) -> None:
    with pytest.raises(ValidationError, match="JSON array of strings"):
        StringListField().clean(text)


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a"', "{" * 100_000])
def test_an_invalid_json_object_is_rejected(text: str) -> None:
    with pytest.raises(ValidationError, match="JSON object of strings"):
        KeyValueLinesField("Headers", "", "").clean(text)


def read_area(page: str, name: str) -> str:
    """Return the text of a text area as the browser submits it."""
    area = re.search(rf'<textarea name="{name}"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL)
    assert area
    return submit(unescape(area[1]))


@pytest.mark.django_db
def test_a_script_in_an_argument_is_unchanged_when_its_server_is_saved() -> None:
    acme = factories.create_organization()
    config = {"command": sys.executable, "args": ["-c", SCRIPT]}
    spec = ServerSpec(name="script", transport_type="stdio", endpoint_config=config)
    server = create_server(factories.build_administrator(acme), spec)
    administrator = admin_client.sign_in(acme, None)
    page = administrator.get(CONFIGURATION, server.pk)
    fields = {**STDIO, "command": sys.executable, "args": read_area(page, "args")}
    administrator.post(CONFIGURATION, server.pk, **fields, description="Runs a script.")
    server.refresh_from_db()
    assert server.description == "Runs a script."
    assert server.endpoint_config == config


@pytest.mark.django_db
def test_values_with_line_breaks_are_unchanged_when_their_preset_is_saved() -> None:
    acme = factories.create_organization()
    config = {"command": "npx", "args": ["-c", SCRIPT], "env": {"MOTTO": "two\nlines"}}
    spec = PresetSpec(name="Script", transport_type="stdio", endpoint_config=config)
    preset = create_preset(factories.build_administrator(acme), spec)
    administrator = admin_client.sign_in(acme, None)
    page = administrator.get("mcp_servers_preset_change", preset.pk)
    fields = {
        **{"name": "Script", "category": "own", "icon": "box", "transport_type": "stdio"},
        **{"command": "npx", "auth_type": "none", "description": "Runs a script."},
        **{name: read_area(page, name) for name in ("args", "env")},
    }
    administrator.post("mcp_servers_preset_change", preset.pk, **fields)
    preset.refresh_from_db()
    assert preset.description == "Runs a script."
    assert preset.endpoint_config == config
