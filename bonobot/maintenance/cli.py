"""The command group `keys`."""

import argparse
import getpass
import time
from dataclasses import asdict
from typing import Any

from bonobot.core.cli.command_group import CommandContext, CommandFailed, CommandVerb, build_table
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.ledger.types import Actor
from bonobot.maintenance import key_rotation


def _serialize_status(status: key_rotation.KeyRotationStatus) -> dict[str, Any]:
    return asdict(status) | {"unfinished": status.unfinished}


def _show_status(cli: CommandContext, options: argparse.Namespace) -> None:
    require_no_organization(options)
    with cli.show_spinner("Looking at every sealed value"):
        status = key_rotation.load_rotation_status()
    rows = [(name.replace("_", " "), value) for name, value in _serialize_status(status).items()]
    cli.emit(_serialize_status(status), build_table("", "", rows=rows, empty=""))
    if status.unfinished:
        cli.print_message("A rotation isn't over: run `bonobot keys rotate`.")
    if status.unreadable:
        cli.print_message(
            "What is unreadable was sealed with keys that aren't there: restore them."
        )


def _add_rotate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="don't ask first")
    parser.add_argument(
        "--given", action="store_true", help="make no key: seal with the first that is there"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=key_rotation.KEY_PROPAGATION_S,
        metavar="SECONDS",
        help=f"until all have noticed the new key (default: {key_rotation.KEY_PROPAGATION_S:g})",
    )
    parser.add_argument(
        "--batch", type=int, default=key_rotation.BATCH_SIZE, metavar="N", help="at a time"
    )


def _rotate_keys(cli: CommandContext, options: argparse.Namespace) -> None:
    require_no_organization(options)
    status = key_rotation.load_rotation_status()
    if options.given:
        cli.print_message(f"{status.older} values are sealed with older keys.")
    elif not status.unfinished:
        if not options.yes and not cli.confirm("Make a new key and seal everything with it?"):
            raise Conflict(
                "Nothing was changed.", code="not_confirmed", field="--yes", remedy="Say --yes."
            )
        key_rotation.add_key()
        key_rotation.record_rotation(_build_actor(), "keys_rotation_begun", keys=status.keys + 1)
        cli.print_message(
            f"A new key seals from now on. Waiting {options.wait:g} s until all have noticed."
        )
    else:
        cli.print_message(f"{status.older} values are sealed with older keys: going on with them.")
    time.sleep(options.wait)
    total = status.current + status.older
    with cli.show_progress("Sealing anew", total=total) as advance:
        rotated = key_rotation.rotate_sealed_values(
            batch=options.batch, on_progress=lambda done: [advance() for _ in range(done)]
        )
    remaining = key_rotation.load_rotation_status()
    key_rotation.record_rotation(
        _build_actor(), "keys_rotated", resealed=rotated, left=remaining.older
    )
    cli.emit(_serialize_status(remaining) | {"resealed": rotated})
    cli.print_message(f"{rotated} values were sealed anew, {remaining.older} are left.")
    if remaining.unreadable:
        cli.print_message(f"{remaining.unreadable} can't be opened with any key: bonobot doctor")
    if remaining.older:
        cli.print_message("They were written meanwhile: run it again.")
        raise CommandFailed
    cli.print_message("Tomorrow, drop the old keys: bonobot keys drop")


def _add_drop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="don't wait for the gateway's clients")


def _drop_keys(cli: CommandContext, options: argparse.Namespace) -> None:
    require_no_organization(options)
    dropped = key_rotation.drop_old_keys(now=options.now)
    key_rotation.record_rotation(_build_actor(), "keys_dropped", keys=dropped)
    cli.emit({"dropped": dropped})
    cli.print_message(
        f"{dropped} old keys are dropped. Backups that were made before need them: keep a copy."
    )


def require_no_organization(options: argparse.Namespace) -> None:
    """Raise `InvalidInput` if `--org` is set: the command affects the whole installation."""
    if options.org:
        raise InvalidInput(
            "This is about the whole installation, not one organization.",
            code="whole_installation",
            field="--org",
            remedy="Leave --org out.",
        )


def _build_actor() -> Actor:
    name = f"cli:{getpass.getuser()}"
    return Actor("cli", name, name)


VERBS = (
    CommandVerb(
        "status",
        "Count what is sealed with which key.",
        _show_status,
        examples=("keys status", "keys status --json"),
    ),
    CommandVerb(
        "rotate",
        "Make a new key and seal everything with it; begun again, it goes on.",
        _rotate_keys,
        _add_rotate_arguments,
        ("keys rotate --yes",),
    ),
    CommandVerb(
        "drop",
        "Forget the old keys once nothing needs them.",
        _drop_keys,
        _add_drop_arguments,
        ("keys drop",),
    ),
)
