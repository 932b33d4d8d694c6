"""Packages that `npx` and `uvx` would fetch at their start, read from a command line: pure.

What is understood is installed before the server is started; a command line with an option that
isn't known here is started as it stands.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

_QUIET = {"npx": ("-y", "--yes", "-q", "--quiet"), "uvx": ("-q", "--quiet")}
# Options with a value, and what they say.
_VALUES = {
    "npx": {"-p": "package", "--package": "package"},
    "uvx": {"--from": "package", "--with": "beside", "-p": "python", "--python": "python"},
}
_INSTALLERS = {"npx": "npm", "uvx": "uv"}


@dataclass(frozen=True, kw_only=True)
class Package:
    """What to install with `installer`, and what to start of it.

    `program` is blank where the package's only program is meant (npm). `beside` are packages that
    are installed into the same environment, `python` the version that was asked for.
    """

    installer: str
    specs: tuple[str, ...]
    program: str
    args: tuple[str, ...]
    beside: tuple[str, ...] = ()
    python: str = ""

    def key(self, env: Mapping[str, str]) -> str:
        """Return a name for what is installed: other packages or another environment, another."""
        said = asdict(self) | {"args": (), "env": dict(env)}
        text = json.dumps(said, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def words(self, folder: str) -> tuple[str, ...]:
        """Return the installer's arguments; it installs into `folder`."""
        if self.installer == "npm":
            options = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=http")
            return ("install", *options, "--prefix", folder, "--", *self.specs)
        beside = [word for spec in self.beside for word in ("--with", spec)]
        python = ("--python", self.python) if self.python else ()
        return ("tool", "install", "--no-config", *beside, *python, "--", *self.specs)

    def environment(self, folder: str) -> dict[str, str]:
        """Return the variables that keep all of an installation in `folder`."""
        if self.installer == "npm":
            return {}
        return {
            "UV_TOOL_DIR": f"{folder}/tools",
            "UV_TOOL_BIN_DIR": f"{folder}/bin",
            "UV_PYTHON_INSTALL_DIR": f"{folder}/python",
            "UV_LINK_MODE": "copy",
        }


def package_of(command: str, args: Sequence[str]) -> Package | None:
    """Return what a launcher's command line would fetch; None where that isn't understood."""
    launcher = PurePosixPath(command).name
    if launcher not in _INSTALLERS:
        return None
    said: dict[str, list[str]] = {"package": [], "beside": [], "python": []}
    left = list(args)
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        if option == "--" and not equals:
            break
        if option in _QUIET[launcher] and not equals:
            continue
        kind = _VALUES[launcher].get(option)
        if kind is None or (not equals and not left):
            return None
        said[kind].append(value if equals else left.pop(0))
    if not left or any(map(_is_local, (*said["package"], *said["beside"], left[0]))):
        return None
    return _package(launcher, said, left[0], tuple(left[1:]))


def _package(
    launcher: str, said: Mapping[str, list[str]], first: str, args: tuple[str, ...]
) -> Package | None:
    named = said["package"]
    if launcher == "uvx" and len(named) > 1:
        return None
    program = first if named else ""
    if launcher == "uvx" and not named:
        program = first.partition("@")[0].partition("==")[0].partition("[")[0]
    return Package(
        installer=_INSTALLERS[launcher],
        specs=tuple(named) or (first,),
        program=program,
        args=args,
        beside=tuple(said["beside"]),
        python=said["python"][-1] if said["python"] else "",
    )


def _is_local(spec: str) -> bool:
    return spec.startswith((".", "/", "~", "-", "file:")) or not spec
