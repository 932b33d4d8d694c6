"""Validation of a stdio server's environment variables, folders and strings."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput, Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.environment_rules import (
    find_variable_danger,
    list_variables_needing_exception,
)
from mcp_servers.client.folder_rules import SYSTEM_ONLY, list_mounted_folders
from mcp_servers.models import Server
from mcp_servers.presets.allowed_folders import build_folder_rule

MAX_REASON_LENGTH = 500
CODE = "variable_not_allowed"
FIX = "Remove the variable, or ask a platform administrator to add an exception (`env_exceptions`)."


class VariableNotAllowed(Problem):
    """A dangerous environment variable that no exception names."""

    code = CODE
    status = 403
    title = "Environment variable not allowed"


def clean_env_exceptions(
    principal: Principal,
    names: Collection[str],
    requested: Mapping[str, str] | None,
    *,
    old: Server | None,
) -> dict[str, str]:
    """Return the exceptions to store: the reason why each dangerous variable is allowed.

    `requested` None keeps the stored exceptions of variables that still exist. Raises
    `VariableNotAllowed`, `Forbidden` if anyone but a platform administrator changes exceptions, and
    `InvalidInput` for an exception without reason or without need.
    """
    stored_exceptions: Mapping[str, str] = old.env_exceptions if old else {}
    exceptions = {name: reason for name, reason in stored_exceptions.items() if name in names}
    if requested is not None:
        cleaned = {name: _clean_reason(name, reason) for name, reason in requested.items()}
        if cleaned != exceptions and not principal.platform_admin:
            raise Forbidden(
                "Only a platform administrator can add exceptions for environment variables.",
                code="platform_admin_only",
                field="env_exceptions",
                rule="environment",
                remedy="Contact a platform administrator.",
            )
        _check_reasons_are_needed(cleaned, names)
        exceptions = cleaned
    for name in list_variables_needing_exception(names, exceptions):
        raise VariableNotAllowed(
            format_message(
                "The environment variable `{name}` requires an exception because {why}.",
                name=make_visible(name, 100),
                why=find_variable_danger(name),
            ),
            field=f"endpoint_config.env.{name}",
            rule="environment",
            remedy=FIX,
        )
    return exceptions


def check_no_dangerous_variables(names: Iterable[str]) -> None:
    """Raise `VariableNotAllowed` if a preset sets a dangerous variable.

    Exceptions exist only for single servers.
    """
    for name in list_variables_needing_exception(names, ()):
        raise VariableNotAllowed(
            format_message(
                "A preset can't set the environment variable `{name}` because {why}.",
                name=make_visible(name, 100),
                why=find_variable_danger(name),
            ),
            field=f"endpoint_config.env.{name}",
            rule="environment",
            remedy="Remove the variable. A platform administrator can allow it for "
            "individual servers.",
        )


def _clean_reason(name: str, raw_reason: Any) -> str:
    reason = raw_reason.strip() if isinstance(raw_reason, str) else ""
    if not reason or len(reason) > MAX_REASON_LENGTH or not reason.isprintable():
        raise InvalidInput(
            format_message(
                "The exception for `{name}` needs a reason of at most {n} characters.",
                name=make_visible(name, 100),
                n=MAX_REASON_LENGTH,
            ),
            field=f"env_exceptions.{make_visible(name, 100)}",
            remedy="Describe in one line why the server needs the variable.",
        )
    return reason


def _check_reasons_are_needed(exceptions: Mapping[str, str], names: Collection[str]) -> None:
    for name in exceptions:
        if name not in names or not find_variable_danger(name):
            raise InvalidInput(
                format_message(
                    "`{name}` doesn't need an exception: the server doesn't set this "
                    "variable, or the variable is allowed.",
                    name=make_visible(name, 100),
                ),
                code="redundant_exception",
                field=f"env_exceptions.{make_visible(name, 100)}",
                remedy="Remove the exception, or correct the name of the variable. Names "
                "are case-sensitive.",
            )


def check_no_nul(config: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if a string of the configuration contains NUL."""
    for field, text in _iterate_strings(config):
        if "\x00" in text:
            raise InvalidInput(
                format_message(
                    "`{field}` contains a NUL character.", field=make_visible(field, 100)
                ),
                field=f"endpoint_config.{make_visible(field, 100)}",
                remedy="Remove the character.",
            )


def _iterate_strings(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for field, value in config.items():
        if isinstance(value, Mapping):
            for name, text in value.items():
                yield f"{field}.{name}", f"{name}{text}"
        else:
            texts = value if isinstance(value, list) else [value]
            yield from ((field, str(text)) for text in texts)


def check_folders(organization_id: UUID, config: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` (`folder_not_allowed`) for the working folder and mounted folders."""
    folders = [("cwd", str(config["cwd"]))] if config.get("cwd") else []
    mounts = list_mounted_folders(str(config["command"]), tuple(config.get("args", ())))
    folders += [("args", folder) for folder in mounts]
    rule = build_folder_rule(organization_id) if folders else SYSTEM_ONLY
    for config_field, folder in folders:
        if reason := rule.find_refusal(folder):
            raise InvalidInput(
                format_message(
                    "The folder `{folder}` can't be used because {why}.",
                    folder=make_visible(folder, 300),
                    why=reason,
                ),
                code="folder_not_allowed",
                field=f"endpoint_config.{config_field}",
                rule="folders",
                remedy="Use the server's own folder or a folder in the organization's workspace.",
            )
