"""Find catalog entries whose program is installed on this machine.

The start command uses the interpreter, so that the launcher allowlist applies: a module of
Bonobot's Python, a Node script, else the program's path.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcp_servers.import_export.entries import ImportEntry
from mcp_servers.import_export.fill_placeholders import ImportParameter
from mcp_servers.presets.catalog import CatalogEntry
from mcp_servers.presets.fill_parameters import fill_parameters
from mcp_servers.server_names import slugify

_NODE_ENDINGS = frozenset((".js", ".mjs", ".cjs"))


@dataclass(frozen=True)
class InstalledProgram:
    """A catalog entry and the path of its installed program."""

    preset: CatalogEntry
    program: Path

    def build_entry(self, values: Mapping[str, str]) -> ImportEntry:
        """Return the server entry for the installed program; `values` fill parameters."""
        parameters = {parameter["name"]: parameter for parameter in self.preset.parameters}
        known_values = {name: value for name, value in values.items() if name in parameters}
        filled = fill_parameters(
            replace(self.preset, endpoint_config=self._build_endpoint_config()), known_values
        )
        missing = {problem.field: problem for problem in filled.problems}
        return ImportEntry(
            name=self.preset.slug,
            slug=slugify(self.preset.slug),
            line=0,
            transport_type="stdio",
            endpoint_config=filled.endpoint_config,
            secrets=filled.secrets,
            parameters=tuple(
                _build_parameter(parameters[name]) for name in missing if name in parameters
            ),
            problems=filled.problems,
        )

    def _build_endpoint_config(self) -> dict[str, Any]:
        command, *first_arguments = _build_start_command(self.program)
        config = dict(self.preset.endpoint_config)
        return config | {
            "command": command,
            "args": [*first_arguments, *_list_server_arguments(self.preset)],
        }


def list_installed_programs(
    entries: Iterable[CatalogEntry], *, path: str | None = None
) -> Iterator[InstalledProgram]:
    """Yield the installed programs, in our own Python's folder or `path` (default: PATH)."""
    python_folder = str(Path(sys.executable).parent)
    for entry in entries:
        if not entry.program:
            continue
        program_path = shutil.which(entry.program, path=python_folder) or shutil.which(
            entry.program, path=path
        )
        if program_path:
            yield InstalledProgram(entry, Path(program_path))


def _build_start_command(program: Path) -> list[str]:
    """Return the command and first arguments that start a program."""
    if program.parent == Path(sys.executable).parent and (module := _find_module(program.name)):
        return [sys.executable, "-m", module]
    script = program.resolve()
    if script.suffix in _NODE_ENDINGS:
        return ["node", str(script)]
    return [str(program)]


def _find_module(name: str) -> str:
    """Return the package to run with `python -m` for a console script, or ""."""
    for entry_point in entry_points(group="console_scripts", name=name):
        package = entry_point.module.partition(".")[0]
        if find_spec(package) is not None and find_spec(f"{package}.__main__") is not None:
            return package
    return ""


def _list_server_arguments(preset: CatalogEntry) -> list[str]:
    """Return the arguments after the package name."""
    args = [str(arg) for arg in preset.endpoint_config.get("args", ())]
    package = preset.proof.get("package", "")
    index = next((i for i, arg in enumerate(args) if package and arg.startswith(package)), None)
    return [] if index is None else args[index + 1 :]


def _build_parameter(parameter: Mapping[str, Any]) -> ImportParameter:
    name = parameter["name"]
    return ImportParameter(
        name, parameter.get("label") or name, bool(parameter.get("secret")), (name,)
    )
