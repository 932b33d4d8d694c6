"""Parameters of a preset are filled in as literal text."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.presets.fill_parameters import fill_parameters


def parameter(name: str, **more: Any) -> dict[str, Any]:
    usual = {"label": name.title(), "secret": False, "required": True, "default": "", "help": ""}
    return {"name": name, **usual, **more}


def preset(**more: Any) -> Any:
    usual: dict[str, Any] = {
        "endpoint_config": {
            "command": "npx",
            "args": ["-y", "server@1.0.0", "--zone=${ZONE}", "${FOLDER}"],
            "env": {"KEY": "${KEY}", "MODE": "read-${MODE}", "FIXED": "1"},
        },
        "auth_config": {},
        "parameters": [
            parameter("FOLDER", pattern="/.+", help="An absolute path."),
            parameter("KEY", secret=True, required=False),
            parameter("MODE", required=False, default="only"),
            parameter("ZONE", required=False),
        ],
    }
    return SimpleNamespace(**usual | more)


def test_values_and_defaults_are_filled_in() -> None:
    filled = fill_parameters(preset(), {"FOLDER": "/srv/a b", "KEY": "k-1", "ZONE": "UTC"})
    assert filled.problems == ()
    assert filled.endpoint_config == {
        "command": "npx",
        "args": ["-y", "server@1.0.0", "--zone=UTC", "/srv/a b"],
    }
    assert {(s.placement, s.name): s.value for s in filled.secrets} == {
        ("env", "KEY"): "k-1",
        ("env", "MODE"): "read-only",
        ("env", "FIXED"): "1",
    }


def test_empty_values_are_omitted() -> None:
    filled = fill_parameters(preset(), {"folder": "/srv"})
    assert filled.endpoint_config["args"] == ["-y", "server@1.0.0", "/srv"]
    assert "KEY" not in {secret.name for secret in filled.secrets}


def test_an_authentication_is_filled_in_and_encrypted() -> None:
    web = preset(
        endpoint_config={"url": "https://${HOST}/mcp", "headers": {"X-Team": "${TEAM}"}},
        auth_config={"header": "X-Key", "key": "${KEY}"},
        parameters=[
            parameter("HOST", pattern=r"[a-z.]+"),
            parameter("TEAM", required=False),
            parameter("KEY", secret=True),
        ],
    )
    filled = fill_parameters(web, {"HOST": "mcp.example.com", "KEY": "k-1"})
    assert filled.endpoint_config == {"url": "https://mcp.example.com/mcp"}
    assert filled.auth_config == {"header": "X-Key"}
    assert [(s.placement, s.name, s.value) for s in filled.secrets] == [("auth", "key", "k-1")]


@pytest.mark.parametrize(
    ("values", "code", "field"),
    [
        ({}, "missing_value", "FOLDER"),
        ({"FOLDER": ""}, "missing_value", "FOLDER"),
        ({"FOLDER": "relative"}, "bad_value", "FOLDER"),
        ({"FOLDER": "/srv\n/etc"}, "bad_value", "FOLDER"),
        ({"FOLDER": "/srv\0"}, "bad_value", "FOLDER"),
        ({"FOLDER": "/" + "x" * 5000}, "bad_value", "FOLDER"),
        ({"FOLDER": 7}, "bad_value", "FOLDER"),
        ({"FOLDER": "/srv", "ZONE": "--help"}, "bad_value", "ZONE"),
        ({"FOLDER": "/srv", "COMMAND": "sh"}, "unknown_parameter", "COMMAND"),
    ],
)
def test_an_invalid_value_is_reported_with_its_parameter(
    values: dict[str, Any], code: str, field: str
) -> None:
    (problem,) = fill_parameters(preset(), values).problems
    assert (problem.code, problem.field) == (code, field)
    assert problem.remedy


def test_all_problems_are_reported_together() -> None:
    codes = [
        problem.code for problem in fill_parameters(preset(), {"ZONE": "-x", "WHAT": "1"}).problems
    ]
    assert sorted(codes) == ["bad_value", "missing_value", "unknown_parameter"]


def test_no_value_is_in_a_repr_or_a_problem() -> None:
    filled = fill_parameters(preset(), {"FOLDER": "canary", "KEY": "canary"})
    assert "canary" not in repr(filled)
    assert "canary" not in json.dumps([problem.as_dict() for problem in filled.problems])


@given(st.text(min_size=1))
def test_a_value_is_inserted_as_literal_text(value: str) -> None:
    text_preset = preset(parameters=[parameter("FOLDER"), parameter("ZONE", default="UTC")])
    filled = fill_parameters(text_preset, {"FOLDER": value})
    if filled.problems:
        return
    assert filled.endpoint_config["command"] == "npx"
    assert filled.endpoint_config["args"] == ["-y", "server@1.0.0", "--zone=UTC", value]
