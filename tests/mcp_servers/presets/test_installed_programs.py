"""Installed servers of the catalog are found and started with their interpreter."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_servers.presets.catalog import load_catalog
from mcp_servers.presets.installed_programs import list_installed_programs

CATALOG = {entry.slug: entry for entry in load_catalog()}


def write_program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_console_script_of_our_environment_is_started_as_a_module():
    (program,) = list_installed_programs([CATALOG["time"]], path="/nowhere")
    entry = program.build_entry({})
    assert entry.endpoint_config["command"] == sys.executable
    assert entry.endpoint_config["args"][:2] == ["-m", "mcp_server_time"]


def test_parameters_are_filled_in_and_missing_ones_reported():
    (program,) = list_installed_programs([CATALOG["git"]], path="/nowhere")
    entry = program.build_entry({})
    assert [problem.code for problem in entry.problems] == ["missing_value"]
    assert [parameter.name for parameter in entry.parameters] == ["REPOSITORY"]
    filled = program.build_entry({"REPOSITORY": "/srv/repository", "UNRELATED": "x"})
    assert filled.is_valid
    assert filled.endpoint_config["args"][-2:] == ["--repository", "/srv/repository"]


def test_a_global_npm_package_is_started_by_node(tmp_path):
    script = write_program(tmp_path / "lib", "index.js", "#!/usr/bin/env node\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mcp-server-everything").symlink_to(script)
    (program,) = list_installed_programs([CATALOG["everything"]], path=str(tmp_path / "bin"))
    assert program.build_entry({}).endpoint_config == {
        "command": "node",
        "args": [str(script), "stdio"],
    }


def test_other_programs_are_started_by_their_path(tmp_path):
    path = write_program(tmp_path, "some-mcp-server")
    entry = replace(CATALOG["time"], program="some-mcp-server")
    (program,) = list_installed_programs([entry], path=os.pathsep.join(["/nowhere", str(tmp_path)]))
    assert program.build_entry({}).endpoint_config["command"] == str(path)


@pytest.mark.parametrize("slug", ["github", "memory"])
def test_a_missing_program_isnt_found(slug, tmp_path):
    assert not list(list_installed_programs([CATALOG[slug]], path=str(tmp_path)))
