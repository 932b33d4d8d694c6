"""The command group `members`, with invitations."""

import argparse
from typing import Any

from django.utils import timezone

from bonobot.accounts import profiles
from bonobot.accounts.agent_directory import find_agent_ids
from bonobot.accounts.invitations import SentInvitation, invite, revoke, send_again
from bonobot.accounts.models import Invitation, Membership
from bonobot.accounts.password_reset import send_reset_link
from bonobot.accounts.roles import Role
from bonobot.accounts.second_factor import reset_second_factor
from bonobot.accounts.services import add_member, remove_member, update_member_role
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import NotFound

ROLES = [role.value for role in Role]


def find(cli: CommandContext, name: str) -> Membership:
    """Return a member by username; raises `NotFound`."""
    rows = Membership.objects.select_related("user")
    found: Membership = rows.get_or_404(cli.principal.organization_id, user__username=name)
    return found


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    here = cli.principal.organization_id
    members = Membership.objects.for_organization(here).select_related("user")
    found = [_serialize_member(one) for one in members.order_by("user__username")]
    found += [
        _serialize_invitation(one)
        for one in Invitation.objects.for_organization(here).open().order_by("email")
    ]
    rows = [(one["username"], one["email"], one["role"], one["state"]) for one in found]
    empty = "Nobody yet: bonobot members invite anna@example.com --role owner"
    cli.emit(found, build_table("NAME", "E-MAIL", "ROLE", "", rows=rows, empty=empty))


def _serialize_member(member: Membership) -> dict[str, Any]:
    user = member.user
    told = {"id": str(member.pk), "username": user.username, "email": user.email}
    return told | {"name": user.get_full_name(), "role": member.role, "state": "member"}


def _serialize_invitation(invitation: Invitation) -> dict[str, Any]:
    ended = invitation.expires_at <= timezone.now()
    return {
        "id": str(invitation.pk),
        "username": "",
        "email": invitation.email,
        "name": "",
        "role": invitation.role,
        "state": "expired" if ended else "invited",
    }


def _invite_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("email", metavar="EMAIL")
    parser.add_argument("--role", required=True, choices=ROLES)
    parser.add_argument(
        "--agent", action="append", metavar="SLUG", help="a member may run it; repeatable"
    )


def _invite(cli: CommandContext, options: argparse.Namespace) -> None:
    agents = find_agent_ids(cli.principal.organization_id, options.agent or ())
    _show_invitation(
        cli, invite(cli.principal, options.email, Role(options.role), agent_ids=agents)
    )


def _show_invitation(cli: CommandContext, posted: SentInvitation) -> None:
    problem = posted.problem.code if posted.problem else ""
    cli.emit(_serialize_invitation(posted.invitation) | {"link": posted.link, "problem": problem})
    if not posted.link:
        cli.say(f"An invitation was sent to {posted.invitation.email}.")
        return
    cli.say(posted.link)
    if posted.problem:
        cli.show_problem(posted.problem)
    if not cli.as_json:
        cli.err.print("Hand this link over: it is not shown again.", style="dim")


def _add_email_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("email", metavar="EMAIL", help="as it was invited")


def _open(cli: CommandContext, email: str) -> Invitation:
    rows = Invitation.objects.for_organization(cli.principal.organization_id).open()
    found: Invitation | None = rows.filter(email=email.strip().lower()).first()
    if found is None:
        raise NotFound(
            f"{email!r} is not invited.",
            field="EMAIL",
            remedy="`bonobot members list` shows who is.",
        )
    return found


def _send(cli: CommandContext, options: argparse.Namespace) -> None:
    _show_invitation(cli, send_again(cli.principal, _open(cli, options.email)))


def _revoke(cli: CommandContext, options: argparse.Namespace) -> None:
    invitation = _open(cli, options.email)
    revoke(cli.principal, invitation)
    cli.emit(_serialize_invitation(invitation) | {"state": "revoked"})
    cli.say(f"{invitation.email} can't join any more.")


def _add_username_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("username", metavar="NAME", help="that they sign in with")


def _add_role_arguments(parser: argparse.ArgumentParser) -> None:
    _add_username_argument(parser)
    parser.add_argument("role", metavar="ROLE", choices=ROLES)


def _add(cli: CommandContext, options: argparse.Namespace) -> None:
    member = add_member(cli.principal, options.username, Role(options.role))
    cli.emit(_serialize_member(member))
    cli.say(f"{options.username} is {member.role} now.")


def _set_role(cli: CommandContext, options: argparse.Namespace) -> None:
    member = find(cli, options.username)
    update_member_role(cli.principal, member, Role(options.role))
    cli.emit(_serialize_member(member))
    cli.say(f"{options.username} is {member.role} now.")


def _remove(cli: CommandContext, options: argparse.Namespace) -> None:
    member = find(cli, options.username)
    told = _serialize_member(member)
    remove_member(cli.principal, member)
    cli.emit(told | {"state": "removed"})
    cli.say(f"{options.username} is no member any more.")


def _reset_second_factor(cli: CommandContext, options: argparse.Namespace) -> None:
    member = find(cli, options.username)
    reset_second_factor(cli.principal, member.user)
    cli.emit(_serialize_member(member))
    cli.say(f"{options.username} signs in by password alone now, and is signed out everywhere.")


def _reset_password(cli: CommandContext, options: argparse.Namespace) -> None:
    member = find(cli, options.username)
    link = send_reset_link(cli.principal, member.user)
    cli.emit(_serialize_member(member) | {"link": link})
    if link:
        cli.say(link)
        cli.say("Hand this link over: whoever has it can choose the password.")
    else:
        cli.say(f"A link was sent to {member.user.email}.")


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _add_username_argument(parser)
    parser.add_argument("--first-name", metavar="TEXT")
    parser.add_argument("--last-name", metavar="TEXT")
    parser.add_argument("--email", metavar="EMAIL", help="nobody proves it: be sure of it")
    parser.add_argument("--language", choices=["", "en", "de"], help="'': as the browser asks")
    parser.add_argument("--time-zone", metavar="ZONE", help="such as Europe/Berlin; '': UTC")


def _set(cli: CommandContext, options: argparse.Namespace) -> None:
    member = find(cli, options.username)
    said = {name: getattr(options, name) for name in profiles.OTHERS}
    said = {name: value for name, value in said.items() if value is not None}
    profiles.update_profile(cli.principal, member.user, **said)
    own = {name: getattr(member.user, name) for name in ("language", "time_zone")}
    cli.emit(_serialize_member(member) | own)
    cli.say(f"The profile of {options.username} is changed.")


def _sign_out(cli: CommandContext, options: argparse.Namespace) -> None:
    member = find(cli, options.username)
    ended = profiles.sign_out(cli.principal, member.user)
    cli.emit(_serialize_member(member) | {"ended": ended})
    cli.say(f"{options.username} is signed out everywhere; sessions that ended: {ended}.")


VERBS = (
    CommandVerb(
        "list", "List the members, and who is invited.", _list, examples=("members list --json",)
    ),
    CommandVerb(
        "invite",
        "Ask somebody to join: by mail, or by a link to hand over.",
        _invite,
        _invite_arguments,
        (
            "members invite anna@example.com --role operator",
            "members invite bert@example.com --role member --agent helper",
        ),
    ),
    CommandVerb(
        "send-again",
        "Send an invitation again; its old link ends.",
        _send,
        _add_email_argument,
        ("members send-again anna@example.com",),
    ),
    CommandVerb(
        "revoke",
        "Take an invitation back.",
        _revoke,
        _add_email_argument,
        ("members revoke anna@example.com",),
    ),
    CommandVerb(
        "add",
        "Give an account that there is a role here.",
        _add,
        _add_role_arguments,
        ("members add anna operator",),
    ),
    CommandVerb(
        "set-role",
        "Give a member another role.",
        _set_role,
        _add_role_arguments,
        ("members set-role anna owner",),
    ),
    CommandVerb(
        "set",
        "Change a member's name, e-mail address, language or time zone.",
        _set,
        _set_arguments,
        ("members set anna --language de", "members set anna --email anna@example.com"),
    ),
    CommandVerb(
        "sign-out",
        "End all sessions of a member.",
        _sign_out,
        _add_username_argument,
        ("members sign-out anna",),
    ),
    CommandVerb(
        "remove",
        "End a membership; the account stays.",
        _remove,
        _add_username_argument,
        ("members remove anna",),
    ),
    CommandVerb(
        "reset-second-factor",
        "Take the second factor away from a member who has lost it; ends their sessions.",
        _reset_second_factor,
        _add_username_argument,
        ("members reset-second-factor anna",),
    ),
    CommandVerb(
        "reset-password",
        "Send a member a link to choose a new password, or print it.",
        _reset_password,
        _add_username_argument,
        ("members reset-password anna",),
    ),
)
