"""The command group `members`, with invitations."""

import argparse
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from bonobot.accounts.extension_points import find_agent_ids
from bonobot.accounts.models import Invitation, Membership
from bonobot.accounts.roles import Role
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import NotFound

if TYPE_CHECKING:
    from bonobot.accounts.invitations import SentInvitation

ROLES = [role.value for role in Role]


def get_member(cli: CommandContext, name: str) -> Membership:
    """Return a member by username; raises `NotFound`."""
    rows = Membership.objects.select_related("user")
    return cli.get_row(Membership, rows, user__username=name)


def _list_members(cli: CommandContext, options: argparse.Namespace) -> None:
    organization_id = cli.principal.organization_id
    members = Membership.objects.for_organization(organization_id).select_related("user")
    entries = [_serialize_member(entry) for entry in members.order_by("user__username")]
    entries += [
        _serialize_invitation(entry)
        for entry in Invitation.objects.for_organization(organization_id).open().order_by("email")
    ]
    rows = [(entry["username"], entry["email"], entry["role"], entry["state"]) for entry in entries]
    empty = "No members yet. Invite one: bonobot members invite anna@example.com --role owner"
    cli.emit(entries, build_table("NAME", "EMAIL", "ROLE", "STATUS", rows=rows, empty=empty))


def _serialize_member(member: Membership) -> dict[str, Any]:
    user = member.user
    fields = {"id": str(member.pk), "username": user.username, "email": user.email}
    return fields | {"name": user.get_full_name(), "role": member.role, "state": "member"}


def _serialize_invitation(invitation: Invitation) -> dict[str, Any]:
    is_expired = invitation.expires_at <= timezone.now()
    return {
        "id": str(invitation.pk),
        "username": "",
        "email": invitation.email,
        "name": "",
        "role": invitation.role,
        "state": "expired" if is_expired else "invited",
    }


_INVITE_ARGUMENTS = (
    Argument("EMAIL", "Email address to invite"),
    Argument("--role", "Role of the new member", required=True, choices=ROLES),
    Argument(
        "--agent SLUG",
        "Agent that the person can run with the role `member`. Repeatable",
        action="append",
    ),
)


def _send_invitation(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.invitations import create_invitation

    agents = find_agent_ids(cli.principal.organization_id, options.agent or ())
    _show_invitation(
        cli, create_invitation(cli.principal, options.email, Role(options.role), agent_ids=agents)
    )


def _show_invitation(cli: CommandContext, sent_invitation: "SentInvitation") -> None:
    problem = sent_invitation.problem.code if sent_invitation.problem else ""
    cli.emit(
        _serialize_invitation(sent_invitation.invitation)
        | {"link": sent_invitation.link, "problem": problem}
    )
    if not sent_invitation.link:
        cli.print_message(f"An invitation was sent to {sent_invitation.invitation.email}.")
        return
    cli.print_message(sent_invitation.link)
    if sent_invitation.problem:
        cli.show_problem(sent_invitation.problem)
    if not cli.as_json:
        cli.err.print("Give this link to the person. It isn't shown again.", style="dim")


_EMAIL_ARGUMENT = (Argument("EMAIL", "Email address of the invitation"),)


def _get_open_invitation(cli: CommandContext, email: str) -> Invitation:
    rows = Invitation.objects.for_organization(cli.principal.organization_id).open()
    invitation: Invitation | None = rows.filter(email=email.strip().lower()).first()
    if invitation is None:
        raise NotFound(
            f"No pending invitation for {email!r} was found.",
            field="EMAIL",
            remedy="List the invitations: bonobot members list",
        )
    return invitation


def _resend_invitation(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.invitations import resend_invitation

    _show_invitation(
        cli, resend_invitation(cli.principal, _get_open_invitation(cli, options.email))
    )


def _revoke_invitation(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.invitations import revoke_invitation

    invitation = _get_open_invitation(cli, options.email)
    revoke_invitation(cli.principal, invitation)
    cli.emit(_serialize_invitation(invitation) | {"state": "revoked"})
    cli.print_message(f"The invitation of {invitation.email} was revoked.")


_USERNAME_ARGUMENT = (Argument("NAME", "Username of the member", dest="username"),)


_ROLE_ARGUMENTS = (
    *_USERNAME_ARGUMENT,
    Argument("ROLE", f"Role: {', '.join(ROLES)}", choices=ROLES),
)


def _add_member(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.members import add_member

    member = add_member(cli.principal, options.username, Role(options.role))
    cli.emit(_serialize_member(member))
    cli.print_message(f"{options.username} now has the role {member.role}.")


def _update_role(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.members import update_member_role

    member = get_member(cli, options.username)
    update_member_role(cli.principal, member, Role(options.role))
    cli.emit(_serialize_member(member))
    cli.print_message(f"{options.username} now has the role {member.role}.")


def _remove_member(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.members import remove_member

    member = get_member(cli, options.username)
    serialized = _serialize_member(member)
    remove_member(cli.principal, member)
    cli.emit(serialized | {"state": "removed"})
    cli.print_message(f"{options.username} was removed from the organization.")


def _reset_second_factor(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.second_factor import reset_second_factor

    member = get_member(cli, options.username)
    reset_second_factor(cli.principal, member.user)
    cli.emit(_serialize_member(member))
    cli.print_message(
        f"The second factor of {options.username} was removed. All their sessions were ended."
    )


def _reset_password(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.password_reset import send_reset_link

    member = get_member(cli, options.username)
    link = send_reset_link(cli.principal, member.user)
    cli.emit(_serialize_member(member) | {"link": link})
    if link:
        cli.print_message(link)
        cli.print_message("Give this link to the person. Anyone who has it can set the password.")
    else:
        cli.print_message(f"A link was sent to {member.user.email}.")


_UPDATE_ARGUMENTS = (
    *_USERNAME_ARGUMENT,
    Argument("--first-name TEXT", "First name"),
    Argument("--last-name TEXT", "Last name"),
    Argument("--email EMAIL", "Email address. It isn't verified."),
    Argument("--language", "Language. '': the browser's language", choices=["", "en", "de"]),
    Argument("--time-zone ZONE", "Time zone, such as Europe/Berlin. '': UTC"),
)


def _update_member(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts import profiles

    member = get_member(cli, options.username)
    values = {name: getattr(options, name) for name in profiles.MANAGED_FIELDS}
    values = {name: value for name, value in values.items() if value is not None}
    profiles.update_profile(cli.principal, member.user, **values)
    profile_fields = {name: getattr(member.user, name) for name in ("language", "time_zone")}
    cli.emit(_serialize_member(member) | profile_fields)
    cli.print_message(f"The profile of {options.username} was updated.")


def _sign_out_member(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts import profiles

    member = get_member(cli, options.username)
    ended_count = profiles.sign_out_everywhere(cli.principal, member.user)
    cli.emit(_serialize_member(member) | {"ended": ended_count})
    cli.print_message(
        f"{options.username} was signed out everywhere. Sessions ended: {ended_count}."
    )


VERBS = (
    CommandVerb(
        "list",
        "List members and open invitations",
        _list_members,
        examples=("members list --json",),
    ),
    CommandVerb(
        "invite",
        "Invite a person by email, or print an invitation link",
        _send_invitation,
        arguments=_INVITE_ARGUMENTS,
        examples=(
            "members invite anna@example.com --role operator",
            "members invite bert@example.com --role member --agent helper",
        ),
    ),
    CommandVerb(
        "send-again",
        "Resend an invitation. The previous link stops working.",
        _resend_invitation,
        arguments=_EMAIL_ARGUMENT,
        examples=("members send-again anna@example.com",),
    ),
    CommandVerb(
        "revoke",
        "Revoke an invitation",
        _revoke_invitation,
        arguments=_EMAIL_ARGUMENT,
        examples=("members revoke anna@example.com",),
    ),
    CommandVerb(
        "add",
        "Add an existing account as a member",
        _add_member,
        arguments=_ROLE_ARGUMENTS,
        examples=("members add anna operator",),
    ),
    CommandVerb(
        "set-role",
        "Change the role of a member",
        _update_role,
        arguments=_ROLE_ARGUMENTS,
        examples=("members set-role anna owner",),
    ),
    CommandVerb(
        "set",
        "Update a member's name, email address, language, or time zone",
        _update_member,
        arguments=_UPDATE_ARGUMENTS,
        examples=("members set anna --language de", "members set anna --email anna@example.com"),
    ),
    CommandVerb(
        "sign-out",
        "Sign a member out everywhere",
        _sign_out_member,
        arguments=_USERNAME_ARGUMENT,
        examples=("members sign-out anna",),
    ),
    CommandVerb(
        "remove",
        "Remove a member. The account is kept.",
        _remove_member,
        arguments=_USERNAME_ARGUMENT,
        examples=("members remove anna",),
        confirmation="Remove {username} from the organization?",
    ),
    CommandVerb(
        "reset-second-factor",
        "Reset a member's second factor and end their sessions",
        _reset_second_factor,
        arguments=_USERNAME_ARGUMENT,
        examples=("members reset-second-factor anna",),
    ),
    CommandVerb(
        "reset-password",
        "Send a member a password reset link, or print it",
        _reset_password,
        arguments=_USERNAME_ARGUMENT,
        examples=("members reset-password anna",),
    ),
)
