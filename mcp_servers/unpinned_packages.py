"""Find packages and images without a pinned version in the commands of stdio servers."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

# The subcommands that make each of these run a package.
_RUNNERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "npx": ((),),
    "bunx": ((),),
    "uvx": ((),),
    "uv": (("tool", "run"),),
    "pipx": (("run",),),
    "pnpm": (("dlx",),),
    "yarn": (("dlx",),),
    "npm": (("exec",), ("x",)),
}
_PACKAGE_OPTIONS = frozenset(("-p", "--package", "--from", "--spec"))
_VALUE_OPTIONS = _PACKAGE_OPTIONS | {
    "-c",
    "--call",
    "-w",
    "--with",
    "--python",
    "--registry",
    "--index-url",
}
_NPM_VERSION = re.compile(r"v?\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?")
_PYPI_PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]*\])?(==|@)v?\d[0-9A-Za-z.!+_-]*")
_COMMIT = re.compile(r"[@#][0-9a-f]{40}\b")
# Options of `docker run` that take a value in the next argument.
_DOCKER_VALUE_OPTIONS = frozenset(
    (
        *("-e", "--env", "-v", "--volume", "-p", "--publish", "-u", "--user", "-w", "--workdir"),
        *("-m", "--memory", "--name", "--network", "--net", "--mount", "--env-file", "-l"),
        *("--label", "--entrypoint", "--cpus", "--add-host", "--cap-drop", "--cap-add", "-h"),
        *("--hostname", "--security-opt", "--platform", "--tmpfs", "--ulimit", "--pids-limit"),
        *("--gpus", "--device", "--pull"),
    )
)


def find_unpinned_package(command: str, args: Sequence[str]) -> str:
    """Return the package or image without a pinned version, or ""."""
    name = PurePosixPath(command).name
    if name in ("docker", "podman", "nerdctl"):
        image = _find_image(args)
        return image if image and not _is_image_pinned(image) else ""
    package = _find_package(name, args)
    if not package or package.startswith((".", "/", "~")):
        return ""
    return "" if _is_package_pinned(package, npm=name not in ("uvx", "uv", "pipx")) else package


def _find_package(runner: str, args: Sequence[str]) -> str:
    """Return the package that a runner's arguments name, or ""."""
    for subcommands in _RUNNERS.get(runner, ()):
        if tuple(args[: len(subcommands)]) == subcommands:
            return _parse_package_argument(list(args[len(subcommands) :]))
    return ""


def _parse_package_argument(args: list[str]) -> str:
    remaining = iter(args)
    for arg in remaining:
        option, equals, value = arg.partition("=")
        if option in _PACKAGE_OPTIONS:
            return value if equals else next(remaining, "")
        if arg == "--":
            return next(remaining, "")
        if arg in _VALUE_OPTIONS:
            next(remaining, "")
        elif not arg.startswith("-"):
            return arg
    return ""


def _is_package_pinned(package: str, *, npm: bool) -> bool:
    if _COMMIT.search(package):
        return True
    if npm:
        _, at, version = package.rpartition("@")
        return bool(at) and _NPM_VERSION.fullmatch(version) is not None
    return _PYPI_PINNED.fullmatch(package) is not None


def _find_image(args: Sequence[str]) -> str:
    """Return the image of `docker run …`, or ""."""
    if not args or args[0] != "run":
        return ""
    remaining = iter(args[1:])
    for arg in remaining:
        if arg in _DOCKER_VALUE_OPTIONS:
            next(remaining, "")
        elif not arg.startswith("-"):
            return arg
    return ""


def _is_image_pinned(image: str) -> bool:
    if "@sha256:" in image:
        return True
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag not in ("", "latest")
