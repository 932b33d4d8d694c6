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


def _serialize_status(found: key_rotation.KeyRotationStatus) -> dict[str, Any]:
    return asdict(found) | {"unfinished": found.unfinished}


def _show_status(cli: CommandContext, options: argparse.Namespace) -> None:
    require_whole(options)
    with cli.waiting("Looking at every sealed value"):
        found = key_rotation.load_rotation_status()
    rows = [(name.replace("_", " "), value) for name, value in _serialize_status(found).items()]
    cli.emit(_serialize_status(found), build_table("", "", rows=rows, empty=""))
    if found.unfinished:
        cli.say("A rotation isn't over: run `bonobot keys rotate`.")
    if found.unreadable:
        cli.say("What is unreadable was sealed with keys that aren't there: restore them.")


def _rotate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="don't ask first")
    parser.add_argument(
        "--given", action="store_true", help="make no key: seal with the first that is there"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=key_rotation.NOTICED_S,
        metavar="SECONDS",
        help=f"until all have noticed the new key (default: {key_rotation.NOTICED_S:g})",
    )
    parser.add_argument(
        "--batch", type=int, default=key_rotation.BATCH, metavar="N", help="at a time"
    )


def _rotate(cli: CommandContext, options: argparse.Namespace) -> None:
    require_whole(options)
    found = key_rotation.load_rotation_status()
    if options.given:
        cli.say(f"{found.older} values are sealed with older keys.")
    elif not found.unfinished:
        if not options.yes and not cli.confirm("Make a new key and seal everything with it?"):
            raise Conflict(
                "Nothing was changed.", code="not_confirmed", field="--yes", remedy="Say --yes."
            )
        key_rotation.add_key()
        key_rotation.record(_build_actor(), "keys_rotation_begun", keys=found.keys + 1)
        cli.say(f"A new key seals from now on. Waiting {options.wait:g} s until all have noticed.")
    else:
        cli.say(f"{found.older} values are sealed with older keys: going on with them.")
    time.sleep(options.wait)
    total = found.current + found.older
    with cli.progress("Sealing anew", total=total) as advance:
        number = key_rotation.rotate_sealed_values(
            batch=options.batch, done=lambda done: [advance() for _ in range(done)]
        )
    left = key_rotation.load_rotation_status()
    key_rotation.record(_build_actor(), "keys_rotated", resealed=number, left=left.older)
    cli.emit(_serialize_status(left) | {"resealed": number})
    cli.say(f"{number} values were sealed anew, {left.older} are left.")
    if left.unreadable:
        cli.say(f"{left.unreadable} can't be opened with any key: bonobot doctor")
    if left.older:
        cli.say("They were written meanwhile: run it again.")
        raise CommandFailed
    cli.say("Tomorrow, drop the old keys: bonobot keys drop")


def _drop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="don't wait for the gateway's clients")


def _drop(cli: CommandContext, options: argparse.Namespace) -> None:
    require_whole(options)
    number = key_rotation.drop_old(now=options.now)
    key_rotation.record(_build_actor(), "keys_dropped", keys=number)
    cli.emit({"dropped": number})
    cli.say(f"{number} old keys are dropped. Backups that were made before need them: keep a copy.")


def require_whole(options: argparse.Namespace) -> None:
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
        _rotate,
        _rotate_arguments,
        ("keys rotate --yes",),
    ),
    CommandVerb(
        "drop",
        "Forget the old keys once nothing needs them.",
        _drop,
        _drop_arguments,
        ("keys drop",),
    ),
)
