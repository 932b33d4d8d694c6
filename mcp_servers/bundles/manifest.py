"""The manifest of a bundle: the command of its server, and the values that a person fills in.

Pure. The folder of the unpacked bundle is written as `{bundle}`; it is replaced at each start.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

FOLDER_MARK = "{bundle}"
MAX_MANIFEST_BYTES = 256 * 1024
MAX_SETTINGS = 100
VERSIONS = frozenset(("0.1", "0.2", "0.3", "0.4"))
SERVER_TYPES = frozenset(("node", "python", "binary", "uv"))
SETTING_TYPES = frozenset(("string", "number", "boolean", "directory", "file"))
# Variables that load code: allowed if they name only folders of the bundle.
CODE_PATHS = frozenset(("PYTHONPATH", "NODE_PATH"))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,99}")
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_DEFAULT_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "node": ("node",),
    "python": ("python3",),
    "binary": (),
    "uv": ("uv", "run", "--directory", FOLDER_MARK),
}
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BundleSetting:
    """A value that a person fills in (`user_config`)."""

    name: str
    type: str
    title: str
    required: bool = False
    sensitive: bool = False
    multiple: bool = False
    default: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    @property
    def field(self) -> str:
        """Return the field of the manifest, for errors."""
        return f"user_config.{self.name}"

    def read_values(self, text: str) -> tuple[str, ...]:
        """Return the values of a filled field; several are one per line. Raises `InvalidInput`."""
        lines = text.splitlines() if self.multiple else [text]
        values = tuple(line.strip() for line in lines if line.strip())
        for value in values:
            self._check_value(value)
        return values or self.default

    def _check_value(self, value: str) -> None:
        if self.type == "boolean" and value not in ("true", "false"):
            raise self._build_error(format_message("`true` or `false`"))
        if self.type in ("directory", "file") and not value.startswith("/"):
            raise self._build_error(format_message("an absolute path"))
        if self.type == "number":
            self._check_number(value)

    def _check_number(self, value: str) -> None:
        if not re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", value):
            raise self._build_error(format_message("a number"))
        if self.minimum is not None and float(value) < self.minimum:
            raise self._build_error(format_message("at least {n}", n=self.minimum))
        if self.maximum is not None and float(value) > self.maximum:
            raise self._build_error(format_message("at most {n}", n=self.maximum))

    def _build_error(self, expected: str) -> InvalidInput:
        return InvalidInput(
            format_message(
                "`{field}` must be {expected}.",
                field=make_visible(self.title, 80),
                expected=expected,
            ),
            code="bad_value",
            field=self.field,
            remedy="Correct the value.",
        )


@dataclass(frozen=True, kw_only=True)
class BundleManifest:
    """The parts of a manifest that are used."""

    name: str
    version: str
    title: str
    server_type: str
    entry_point: str
    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    settings: tuple[BundleSetting, ...] = ()


def read_manifest(content: bytes, platform: str) -> BundleManifest:
    """Return the manifest for a platform such as `linux`; raises `InvalidInput` with its field."""
    manifest = _parse_object(content)
    version = manifest.get("manifest_version", manifest.get("dxt_version"))
    if version not in VERSIONS:
        raise build_manifest_error(
            "manifest_version",
            format_message("Supported versions: {listed}.", listed=", ".join(sorted(VERSIONS))),
        )
    name = _read_text(manifest, "name", "name")
    if not _NAME.fullmatch(name):
        raise build_manifest_error("name", format_message("It isn't a name."))
    _check_platform(manifest, platform)
    server = _read_object(manifest, "server", "server")
    server_type = _read_text(server, "type", "server.type")
    if server_type not in SERVER_TYPES:
        raise build_manifest_error(
            "server.type",
            format_message("Supported types: {listed}.", listed=", ".join(sorted(SERVER_TYPES))),
        )
    entry_point = _read_entry_point(server)
    command, args, env = _read_command(server, server_type, entry_point, platform)
    return BundleManifest(
        name=name,
        version=_read_text(manifest, "version", "version"),
        title=str(manifest.get("display_name") or name)[:100],
        server_type=server_type,
        entry_point=entry_point,
        command=command,
        args=args,
        env=env,
        settings=_read_settings(manifest),
    )


def is_bundle_program(command: str) -> bool:
    """Tell whether a command is a program of the bundle, at a path inside it."""
    parts = command.split("/")
    return parts[0] == FOLDER_MARK and len(parts) > 1 and not {"", ".", ".."} & set(parts)


def build_manifest_error(field: str, reason: str) -> InvalidInput:
    """Return the error of a field of the manifest."""
    return InvalidInput(
        format_message("`{field}` in the bundle's manifest: {reason}", field=field, reason=reason),
        code="bad_manifest",
        field=field,
        remedy="Correct manifest.json, check it with `mcpb validate`, and pack the bundle again.",
    )


def fill_references(
    text: str, field: str, values: Mapping[str, tuple[str, ...]], sensitive: frozenset[str]
) -> tuple[str, ...]:
    """Return a text with its references replaced; several if it is a setting with several values.

    Values are inserted once: a reference in a value is never replaced. Raises `InvalidInput` for an
    unknown reference, and for a `sensitive` one.
    """
    reference = _REFERENCE.fullmatch(text)
    if (
        reference
        and (name := reference[1].removeprefix("user_config.")) != reference[1]
        and name in values
    ):
        _check_not_sensitive(name, field, sensitive)
        return values[name]
    return ("".join(_iterate_parts(text, field, values, sensitive)),)


def _iterate_parts(
    text: str, field: str, values: Mapping[str, tuple[str, ...]], sensitive: frozenset[str]
) -> Any:
    for index, part in enumerate(_REFERENCE.split(text)):
        name = part.removeprefix("user_config.")
        if not index % 2:
            yield part
        elif part == "__dirname":
            yield FOLDER_MARK
        elif part in ("pathSeparator", "/"):
            yield "/"
        elif name != part and name in values:
            _check_not_sensitive(name, field, sensitive)
            yield ",".join(values[name])
        else:
            raise build_manifest_error(
                field,
                format_message("`{name}` is unknown.", name="${" + make_visible(part, 60) + "}"),
            )


def _check_not_sensitive(name: str, field: str, sensitive: frozenset[str]) -> None:
    if name in sensitive:
        raise build_manifest_error(
            field,
            format_message(
                "`user_config.{name}` is sensitive, but arguments are stored in plain text. The "
                "bundle must pass it in `env`.",
                name=name,
            ),
        )


def _parse_object(content: bytes) -> Json:
    try:
        manifest = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise build_manifest_error("manifest.json", format_message("It isn't JSON.")) from None
    if not isinstance(manifest, dict):
        raise build_manifest_error("manifest.json", format_message("It isn't an object."))
    return manifest


def _check_platform(manifest: Json, platform: str) -> None:
    compatibility = manifest.get("compatibility")
    platforms = compatibility.get("platforms") if isinstance(compatibility, dict) else None
    if isinstance(platforms, list) and platform not in platforms:
        raise build_manifest_error(
            "compatibility.platforms",
            format_message("The bundle doesn't run on {platform}.", platform=platform),
        )


def _read_entry_point(server: Json) -> str:
    path = _read_text(server, "entry_point", "server.entry_point")
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or not parts:
        raise build_manifest_error(
            "server.entry_point", format_message("It must be a path within the bundle.")
        )
    return str(PurePosixPath(path))


def _read_command(
    server: Json, server_type: str, entry_point: str, platform: str
) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Return command, arguments, and environment with their references."""
    config = server.get("mcp_config")
    if config is None:
        command_line = (*_DEFAULT_COMMANDS[server_type], f"${{__dirname}}/{entry_point}")
        return command_line[0], command_line[1:], {}
    path = "server.mcp_config"
    config = _read_object(server, "mcp_config", path)
    overrides = config.get("platform_overrides")
    override = overrides.get(platform) if isinstance(overrides, dict) else None
    for name in ("command", "args", "env"):
        if isinstance(override, dict) and override.get(name):
            config = config | {name: override[name]}
    args, env = config.get("args") or [], config.get("env") or {}
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise build_manifest_error(f"{path}.args", format_message("It must be a list of strings."))
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise build_manifest_error(
            f"{path}.env", format_message("It must be an object with string values.")
        )
    return _read_text(config, "command", f"{path}.command"), tuple(args), env


def _read_settings(manifest: Json) -> tuple[BundleSetting, ...]:
    raw_settings = manifest.get("user_config")
    if raw_settings is None:
        return ()
    if not isinstance(raw_settings, dict) or len(raw_settings) > MAX_SETTINGS:
        raise build_manifest_error(
            "user_config",
            format_message("It must be an object with at most {n} fields.", n=MAX_SETTINGS),
        )
    return tuple(_read_setting(name, raw) for name, raw in raw_settings.items())


def _read_setting(name: str, raw: Any) -> BundleSetting:
    field = f"user_config.{make_visible(name, 64)}"
    if not _SETTING_NAME.fullmatch(name) or not isinstance(raw, dict):
        raise build_manifest_error(field, format_message("It must be an object with a name."))
    if raw.get("type") not in SETTING_TYPES:
        raise build_manifest_error(
            f"{field}.type",
            format_message("Supported types: {listed}.", listed=", ".join(sorted(SETTING_TYPES))),
        )
    limits = [raw.get(name) for name in ("min", "max")]
    if any(isinstance(n, bool) or not isinstance(n, int | float | None) for n in limits):
        raise build_manifest_error(field, format_message("`min` and `max` must be numbers."))
    return BundleSetting(
        name=name,
        type=raw["type"],
        title=str(raw.get("title") or name)[:200],
        required=raw.get("required") is True,
        sensitive=raw.get("sensitive") is True,
        multiple=raw.get("multiple") is True,
        default=_read_default(raw.get("default")),
        minimum=limits[0],
        maximum=limits[1],
    )


def _read_default(value: Any) -> tuple[str, ...]:
    """Return the default as texts; one with folders of a person's home isn't used."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    texts = [
        json.dumps(item) if isinstance(item, bool | int | float) else item
        for item in values
        if isinstance(item, str | bool | int | float) and item != ""
    ]
    return () if any(_REFERENCE.search(text) for text in texts) else tuple(texts)


def _read_object(parent: Json, name: str, field: str) -> Json:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise build_manifest_error(field, format_message("It must be an object."))
    return value


def _read_text(parent: Json, name: str, field: str) -> str:
    value = parent.get(name)
    if not isinstance(value, str) or not value.strip() or "\x00" in value:
        raise build_manifest_error(field, format_message("It must be a string."))
    return value
