"""Manifests of bundles: each error names its field."""

import json
from typing import Any

import pytest

from bonobot.core.problems import InvalidInput
from mcp_servers.bundles.manifest import (
    BundleSetting,
    fill_references,
    is_bundle_program,
    read_manifest,
)
from tests.bundle_files import build_manifest


def read(platform: str = "linux", **fields: Any) -> Any:
    return read_manifest(json.dumps(build_manifest(**fields)).encode(), platform)


def build_server(**config: Any) -> dict[str, Any]:
    return {"type": "node", "entry_point": "a.js", "mcp_config": {"command": "node", **config}}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"manifest_version": "9"}, "manifest_version"),
        ({"name": "../x"}, "name"),
        ({"name": 7}, "name"),
        ({"version": ""}, "version"),
        ({"server": []}, "server"),
        ({"server": {"type": "shell", "entry_point": "a"}}, "server.type"),
        ({"server": {"type": "node", "entry_point": "../a"}}, "server.entry_point"),
        ({"server": {"type": "node", "entry_point": "/a"}}, "server.entry_point"),
        ({"server": build_server(command="")}, "server.mcp_config.command"),
        ({"server": build_server(args="a b")}, "server.mcp_config.args"),
        ({"server": build_server(env={"A": 1})}, "server.mcp_config.env"),
        ({"compatibility": {"platforms": ["win32"]}}, "compatibility.platforms"),
        ({"user_config": []}, "user_config"),
        ({"user_config": {"a b": {"type": "string"}}}, "user_config.a b"),
        ({"user_config": {"a": {"type": "date"}}}, "user_config.a.type"),
        ({"user_config": {"a": {"type": "number", "min": "1"}}}, "user_config.a"),
    ],
)
def test_an_invalid_field_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(**fields)
    assert (caught.value.code, caught.value.field) == ("bad_manifest", field)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_a_manifest_that_isnt_an_object_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_manifest(content, "linux")
    assert caught.value.field == "manifest.json"


def test_the_settings_of_the_platform_replace_those_of_all() -> None:
    overrides = {"linux": {"args": ["l"]}, "win32": {"command": "node.exe", "env": {"A": "w"}}}
    server = build_server(args=["x"], env={"A": "x"}, platform_overrides=overrides)
    linux, windows = read(server=server), read("win32", server=server)
    assert (linux.command, linux.args, linux.env) == ("node", ("l",), {"A": "x"})
    assert (windows.command, windows.args, windows.env) == ("node.exe", ("x",), {"A": "w"})


def test_an_older_bundle_and_one_without_a_command_are_read() -> None:
    manifest = build_manifest(server={"type": "node", "entry_point": "server/a.js"})
    del manifest["manifest_version"]
    read_old = read_manifest(json.dumps(manifest | {"dxt_version": "0.1"}).encode(), "linux")
    assert (read_old.command, read_old.args) == ("node", ("${__dirname}/server/a.js",))
    uv = read(server={"type": "uv", "entry_point": "a.py"})
    assert (uv.command, uv.args[:2]) == ("uv", ("run", "--directory"))


def test_references_are_replaced_once() -> None:
    values = {"dirs": ("/a", "/b"), "text": ("${user_config.key}",), "key": ("secret",)}
    secret = frozenset({"key"})

    def fill(text: str) -> tuple[str, ...]:
        return fill_references(text, "args[0]", values, secret)

    assert fill("${__dirname}${/}x") == ("{bundle}/x",)
    assert fill("${user_config.dirs}") == ("/a", "/b")
    assert fill("--dirs=${user_config.dirs}") == ("--dirs=/a,/b",)
    assert fill("${user_config.text}") == ("${user_config.key}",)
    for text in ("${user_config.key}", "a${user_config.key}", "${HOME}", "${user_config.x}"):
        with pytest.raises(InvalidInput) as caught:
            fill(text)
        assert caught.value.field == "args[0]"
    assert fill_references("${user_config.key}", "env.KEY", values, frozenset()) == ("secret",)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"type": "number"}, "1e9"),
        ({"type": "number", "minimum": 2}, "1"),
        ({"type": "number", "maximum": 2}, "3"),
        ({"type": "boolean"}, "yes"),
        ({"type": "directory", "multiple": True}, "/a\nb"),
    ],
)
def test_a_value_of_another_type_is_refused(setting: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        BundleSetting(name="x", title="X", **setting).read_values(text)
    assert (caught.value.code, caught.value.field) == ("bad_value", "user_config.x")


def test_defaults_are_used_but_not_those_with_folders_of_a_person() -> None:
    config = {
        "a": {"type": "number", "default": 5, "title": "A"},
        "b": {"type": "directory", "default": ["${HOME}/Desktop"], "multiple": True},
        "c": {"type": "boolean", "default": False},
    }
    settings = read(user_config=config).settings
    assert [setting.read_values("") for setting in settings] == [("5",), (), ("false",)]


def test_only_programs_within_the_bundle_are_its_programs() -> None:
    assert is_bundle_program("{bundle}/bin/server")
    for command in ("{bundle}", "{bundle}/../x", "{bundle}/./x", "{bundle}//x", "/x/{bundle}/y"):
        assert not is_bundle_program(command)
