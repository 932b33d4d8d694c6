"""What is held between calls: `bonobot agents held|clear-held`, `tokens held|clear-held` (X9)."""

import argparse

from agents.holding import clear_agent, clear_token, held_by_agent, held_by_token
from bonobot.cli.agents import find
from bonobot.cli.group import Cli, Verb
from bonobot.tenancy.models import Token


def _agent(cli: Cli, options: argparse.Namespace) -> None:
    agent = find(cli, options.slug)
    _tell(cli, agent.slug, held_by_agent(agent))


def _clear_agent(cli: Cli, options: argparse.Namespace) -> None:
    agent = find(cli, options.slug)
    clear_agent(cli.principal, agent)
    _tell(cli, agent.slug, held_by_agent(agent))


def _token(cli: Cli, options: argparse.Namespace) -> None:
    token = _find(cli, options.key)
    _tell(cli, token.name, held_by_token(token))


def _clear_token(cli: Cli, options: argparse.Namespace) -> None:
    token = _find(cli, options.key)
    clear_token(cli.principal, token)
    _tell(cli, token.name, held_by_token(token))


def _find(cli: Cli, key: str) -> Token:
    found: Token = Token.objects.get_or_404(cli.principal.organization_id, key=key)
    return found


def _tell(cli: Cli, name: str, labels: tuple[str, ...]) -> None:
    held = [str(label) for label in labels]
    cli.emit({"name": name, "held": held})
    cli.say(f"{name} holds {', '.join(held) or 'nothing'} from calls without a session.")


def _slug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")


def _key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the token's public key, as listed")


HELD = "Show which flow labels {} holds from calls without a session."
LET_GO = "Let go of what {} holds from calls without a session; audited."
OF_AGENTS = (
    Verb("held", HELD.format("an agent"), _agent, _slug, ("agents held demo",)),
    Verb(
        *("clear-held", LET_GO.format("an agent and its tokens"), _clear_agent, _slug),
        ("agents clear-held demo",),
    ),
)
OF_TOKENS = (
    Verb("held", HELD.format("a token"), _token, _key, ("tokens held 1a2b3c4d5e6f",)),
    Verb(
        *("clear-held", LET_GO.format("a token"), _clear_token, _key),
        ("tokens clear-held 1a2b3c4d5e6f",),
    ),
)
