"""Import entries of servers that run a bundle: filled from its manifest."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.bundles.manifest import (
    CODE_PATHS,
    FOLDER_MARK,
    BundleManifest,
    BundleSetting,
    fill_references,
)
from mcp_servers.bundles.services import find_bundle, load_manifest
from mcp_servers.import_export.entries import ImportEntry, SecretValue
from mcp_servers.import_export.fill_placeholders import ImportParameter
from mcp_servers.server_names import slugify

EXCEPTION_REASON = "Names only folders of the server's bundle."


def fill_bundle_entries(
    organization_id: UUID, entries: Iterable[ImportEntry], values: Mapping[str, str]
) -> tuple[ImportEntry, ...]:
    """Return the entries, those that name only a bundle with the command of its manifest."""
    return tuple(
        _fill_entry(organization_id, entry, values)
        if "bundle" in entry.endpoint_config and "command" not in entry.endpoint_config
        else entry
        for entry in entries
    )


def _fill_entry(
    organization_id: UUID, entry: ImportEntry, values: Mapping[str, str]
) -> ImportEntry:
    try:
        bundle = find_bundle(organization_id, str(entry.endpoint_config["bundle"]))
        manifest = load_manifest(bundle)
    except Problem as problem:
        problem.extra.setdefault("line", entry.line)
        return replace(entry, problems=(*entry.problems, problem))
    names = {setting.name: _build_parameter_name(entry, setting) for setting in manifest.settings}
    parameters = tuple(
        ImportParameter(names[setting.name], setting.title, setting.sensitive, (setting.field,))
        for setting in manifest.settings
    )
    settings: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for setting in manifest.settings:
        try:
            settings[setting.name] = setting.read_values(values.get(names[setting.name], ""))
        except Problem as problem:
            problems.append(problem)
            continue
        if setting.required and not settings[setting.name]:
            problems.append(_build_missing_value(setting))
    entry = replace(entry, parameters=parameters)
    if not problems:
        try:
            return _apply_manifest(entry, manifest, settings)
        except Problem as problem:
            problems.append(problem)
    for found_problem in problems:
        found_problem.extra.setdefault("line", entry.line)
    endpoint = {**entry.endpoint_config, "command": manifest.command, "args": list(manifest.args)}
    return replace(entry, endpoint_config=endpoint, problems=(*entry.problems, *problems))


def _apply_manifest(
    entry: ImportEntry, manifest: BundleManifest, settings: Mapping[str, tuple[str, ...]]
) -> ImportEntry:
    sensitive = frozenset(setting.name for setting in manifest.settings if setting.sensitive)
    path = "server.mcp_config"
    command = "".join(fill_references(manifest.command, f"{path}.command", settings, sensitive))
    args = [
        word
        for index, arg in enumerate(manifest.args)
        for word in fill_references(arg, f"{path}.args[{index}]", settings, sensitive)
    ]
    env = {
        name: ",".join(fill_references(text, f"{path}.env.{name}", settings, frozenset()))
        for name, text in manifest.env.items()
    }
    return replace(
        entry,
        endpoint_config={**entry.endpoint_config, "command": command, "args": args},
        secrets=(
            *entry.secrets,
            *(SecretValue("env", name, value) for name, value in env.items() if value),
        ),
        env_exceptions={
            name: EXCEPTION_REASON for name, value in env.items() if _is_own_path(name, value)
        },
    )


def _is_own_path(name: str, value: str) -> bool:
    """Tell whether a variable that loads code names only folders of the bundle."""
    return name in CODE_PATHS and all(
        (part == FOLDER_MARK or part.startswith(f"{FOLDER_MARK}/")) and ".." not in part.split("/")
        for part in value.split(":")
    )


def _build_parameter_name(entry: ImportEntry, setting: BundleSetting) -> str:
    """Return the name of a value, which no other server of the import has."""
    return slugify(f"{entry.name}-{setting.name}").replace("-", "_").upper()


def _build_missing_value(setting: BundleSetting) -> InvalidInput:
    title = make_visible(setting.title, 80)
    return InvalidInput(
        format_message("`{field}` needs a value: {title}.", field=setting.field, title=title),
        code="missing_value",
        field=setting.field,
        remedy=format_message("Enter a value for {label}.", label=title),
    )
