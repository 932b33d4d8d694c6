"""The command group `keys`."""

import argparse
import getpass
import time
from dataclasses import asdict
from typing import Any

from bonobot.core.cli.command_group import Argument, CommandContext, CommandFailed, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.ledger.types import Actor
from bonobot.maintenance import key_rotation


def _serialize_status(status: key_rotation.KeyRotationStatus) -> dict[str, Any]:
    return asdict(status) | {"unfinished": status.unfinished}


def _show_status(cli: CommandContext, options: argparse.Namespace) -> None:
    require_no_organization(options)
    with cli.show_spinner("Checking encrypted values…"):
        status = key_rotation.load_rotation_status()
    rows = [(name.replace("_", " "), value) for name, value in _serialize_status(status).items()]
    cli.emit(_serialize_status(status), build_table("", "", rows=rows, empty=""))
    if status.unfinished:
        cli.print_message(
            "A key rotation isn't complete. To continue it, run `bonobot keys rotate`."
        )
    if status.unreadable:
        cli.print_message("Unreadable values were encrypted with missing keys. Restore these keys.")


_ROTATE_ARGUMENTS = (
    Argument("--yes", "Don't ask for confirmation"),
    Argument("--existing", "Use the first existing key instead of creating a key"),
    Argument(
        "--wait SECONDS",
        "Time for all processes to load the new key, in seconds "
        f"(default: {key_rotation.KEY_PROPAGATION_S:g})",
        type=float,
        default=key_rotation.KEY_PROPAGATION_S,
    ),
    Argument(
        "--batch N",
        f"Number of values per batch (default: {key_rotation.BATCH_SIZE})",
        type=int,
        default=key_rotation.BATCH_SIZE,
    ),
)


def _rotate_keys(cli: CommandContext, options: argparse.Namespace) -> None:
    require_no_organization(options)
    status = key_rotation.load_rotation_status()
    if options.existing:
        cli.print_message(f"{status.older} values are encrypted with older keys.")
    elif not status.unfinished:
        if not options.yes and not cli.confirm("Create a new key and encrypt all values with it?"):
            raise Conflict(
                "The key rotation wasn't confirmed. Nothing was changed.",
                code="not_confirmed",
                field="--yes",
                remedy="Confirm with --yes.",
            )
        key_rotation.add_key()
        key_rotation.record_rotation(_build_actor(), "key_rotation_started", keys=status.keys + 1)
        cli.print_message(
            f"A new key was created. Waiting {options.wait:g} s for all processes to load it."
        )
    else:
        cli.print_message(
            f"Continuing the rotation: {status.older} values are encrypted with older keys."
        )
    time.sleep(options.wait)
    total = status.current + status.older
    with cli.show_progress("Encrypting values", total=total) as advance:
        rotated = key_rotation.rotate_sealed_values(
            batch=options.batch, on_progress=lambda row_count: [advance() for _ in range(row_count)]
        )
    remaining = key_rotation.load_rotation_status()
    key_rotation.record_rotation(
        _build_actor(), "keys_rotated", resealed=rotated, left=remaining.older
    )
    cli.emit(_serialize_status(remaining) | {"resealed": rotated})
    cli.print_message(
        f"{format_count(rotated, 'value')} encrypted with the new key. {remaining.older} remaining."
    )
    if remaining.unreadable:
        cli.print_message(
            f"{remaining.unreadable} values can't be decrypted with any key. Run `bonobot doctor`."
        )
    if remaining.older:
        cli.print_message(
            "The remaining values were saved during the rotation. Run the command again."
        )
        raise CommandFailed
    cli.print_message("After one day, delete the old keys: bonobot keys drop")


def _drop_keys(cli: CommandContext, options: argparse.Namespace) -> None:
    require_no_organization(options)
    dropped = key_rotation.drop_old_keys(now=options.now)
    key_rotation.record_rotation(_build_actor(), "old_keys_deleted", keys=dropped)
    cli.emit({"dropped": dropped})
    cli.print_message(
        f"{dropped} old keys were deleted. Keep a copy of them to decrypt earlier backups."
    )


def require_no_organization(options: argparse.Namespace) -> None:
    """Raise `InvalidInput` if `--org` is set: the command affects the whole installation."""
    if options.org:
        raise InvalidInput(
            "This command applies to the whole installation, not to one organization.",
            code="whole_installation",
            field="--org",
            remedy="Omit --org.",
        )


def _build_actor() -> Actor:
    name = f"cli:{getpass.getuser()}"
    return Actor("cli", name, name)


VERBS = (
    CommandVerb(
        "status",
        "Count the encrypted values by key",
        _show_status,
        examples=("keys status", "keys status --json"),
    ),
    CommandVerb(
        "rotate",
        "Create a new key and encrypt all values with it. Run it again if interrupted.",
        _rotate_keys,
        arguments=_ROTATE_ARGUMENTS,
        examples=("keys rotate --yes",),
    ),
    CommandVerb(
        "drop",
        "Delete old keys that are no longer needed",
        _drop_keys,
        arguments=(Argument("--now", "Don't wait for the states of gateway clients to expire"),),
        examples=("keys drop",),
    ),
)
