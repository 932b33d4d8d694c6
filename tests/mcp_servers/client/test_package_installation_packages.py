"""The packages that `npx` and `uvx` would fetch are read from their command lines."""

import pytest

from mcp_servers.client.package_installation import find_launcher_package
from mcp_servers.presets.catalog import load_catalog


@pytest.mark.parametrize(
    ("command", "args", "installer", "specs", "program", "program_args"),
    [
        ("npx", ["-y", "a@1.2.3", "/x"], "npm", ("a@1.2.3",), "", ("/x",)),
        ("/opt/n/bin/npx", ["--yes", "@o/a@1"], "npm", ("@o/a@1",), "", ()),
        (
            "npx",
            ["-y", "-p", "a@1", "-p", "b@2", "run", "-v"],
            "npm",
            ("a@1", "b@2"),
            "run",
            ("-v",),
        ),
        ("npx", ["--package=a@1", "--", "run"], "npm", ("a@1",), "run", ()),
        ("uvx", ["a==1.2", "--x", "1"], "uv", ("a==1.2",), "a", ("--x", "1")),
        ("uvx", ["a[cli]@1.2"], "uv", ("a[cli]@1.2",), "a", ()),
        ("uvx", ["--from", "a==1", "run", "-v"], "uv", ("a==1",), "run", ("-v",)),
        ("uvx", ["--with=b", "--python", "3.12", "a"], "uv", ("a",), "a", ()),
    ],
)
def test_package_program_and_arguments_are_separated(
    command, args, installer, specs, program, program_args
):
    package = find_launcher_package(command, args)
    assert package is not None
    assert (package.installer, package.specs, package.program, package.args) == (
        *(installer, specs, program),
        program_args,
    )


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("node", ["server.js"]),
        ("npx", []),
        ("npx", ["-y"]),
        ("npx", ["-c", "echo"]),
        ("npx", ["--registry", "https://r", "a"]),
        ("npx", ["-y", "./local"]),
        ("npx", ["-y", "/srv/local"]),
        ("npx", ["-y", "file:local"]),
        ("npx", ["-p"]),
        ("uvx", ["--index-url", "https://i", "a"]),
        ("uvx", ["--from", "a", "--from", "b", "c"]),
        ("uvx", ["--from", ".", "c"]),
    ],
)
def test_an_unknown_command_is_started_unchanged(command, args):
    assert find_launcher_package(command, args) is None


def test_an_installation_depends_on_version_and_environment_but_not_on_arguments():
    keys = [
        find_launcher_package("npx", args).compute_key(env)
        for args, env in (
            (["a@1", "x"], {}),
            (["a@1", "y"], {}),
            (["a@2", "x"], {}),
            (["a@1", "x"], {"NPM_CONFIG_REGISTRY": "https://r"}),
        )
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_every_program_of_the_catalog_is_installed_before_it_starts():
    for entry in load_catalog():
        if entry.transport_type == "stdio":
            assert find_launcher_package(
                entry.endpoint_config["command"], entry.endpoint_config["args"]
            )
