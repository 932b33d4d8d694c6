"""Packages that `npx` and `uvx` command lines would fetch (pure).

These packages are installed before the server is started; a command line with an unknown option is
started unchanged.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

_QUIET = {"npx": ("-y", "--yes", "-q", "--quiet"), "uvx": ("-q", "--quiet")}
# Options with a value, and the kind of the value.
_VALUES = {
    "npx": {"-p": "package", "--package": "package"},
    "uvx": {"--from": "package", "--with": "beside", "-p": "python", "--python": "python"},
}
_INSTALLERS = {"npx": "npm", "uvx": "uv"}


@dataclass(frozen=True, kw_only=True)
class Package:
    """What to install with `installer`, and which program to start.

    `program` is blank for the package's only program (npm). `beside` are packages installed into
    the same environment, `python` is the requested version.
    """

    installer: str
    specs: tuple[str, ...]
    program: str
    args: tuple[str, ...]
    beside: tuple[str, ...] = ()
    python: str = ""

    def compute_key(self, env: Mapping[str, str]) -> str:
        """Return a key of the installation, which depends on packages and environment."""
        fields = asdict(self) | {"args": (), "env": dict(env)}
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def build_install_arguments(self, folder: str) -> tuple[str, ...]:
        """Return the installer's arguments to install into `folder`."""
        if self.installer == "npm":
            options = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=http")
            return ("install", *options, "--prefix", folder, "--", *self.specs)
        beside = [word for spec in self.beside for word in ("--with", spec)]
        python = ("--python", self.python) if self.python else ()
        return ("tool", "install", "--no-config", *beside, *python, "--", *self.specs)

    def build_install_environment(self, folder: str) -> dict[str, str]:
        """Return the variables that keep an installation within `folder`."""
        if self.installer == "npm":
            return {}
        return {
            "UV_TOOL_DIR": f"{folder}/tools",
            "UV_TOOL_BIN_DIR": f"{folder}/bin",
            "UV_PYTHON_INSTALL_DIR": f"{folder}/python",
            "UV_LINK_MODE": "copy",
        }


def find_launcher_package(command: str, args: Sequence[str]) -> Package | None:
    """Return the package that a launcher's command line would fetch; None if unknown."""
    launcher = PurePosixPath(command).name
    if launcher not in _INSTALLERS:
        return None
    values: dict[str, list[str]] = {"package": [], "beside": [], "python": []}
    remaining = list(args)
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        if option == "--" and not equals:
            break
        if option in _QUIET[launcher] and not equals:
            continue
        kind = _VALUES[launcher].get(option)
        if kind is None or (not equals and not remaining):
            return None
        values[kind].append(value if equals else remaining.pop(0))
    if not remaining or any(map(_is_local, (*values["package"], *values["beside"], remaining[0]))):
        return None
    return _build_package(launcher, values, remaining[0], tuple(remaining[1:]))


def _build_package(
    launcher: str, values: Mapping[str, list[str]], first: str, args: tuple[str, ...]
) -> Package | None:
    packages = values["package"]
    if launcher == "uvx" and len(packages) > 1:
        return None
    program = first if packages else ""
    if launcher == "uvx" and not packages:
        program = first.partition("@")[0].partition("==")[0].partition("[")[0]
    return Package(
        installer=_INSTALLERS[launcher],
        specs=tuple(packages) or (first,),
        program=program,
        args=args,
        beside=tuple(values["beside"]),
        python=values["python"][-1] if values["python"] else "",
    )


def _is_local(spec: str) -> bool:
    return spec.startswith((".", "/", "~", "-", "file:")) or not spec
