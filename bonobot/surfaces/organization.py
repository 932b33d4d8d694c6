"""The organization: who is in it, which programs, what stops everything."""

from bonobot.surfaces.deeds import Area, Deed

AREA = Area(
    "Organization",
    (
        Deed(
            "See and set what holds for all",
            admin="organization.list organization.change",
            rest="get_organization change_organization",
            cli="org show, org set",
        ),
        Deed(
            "Stop everything, and go on",
            admin="organization_halt",
            rest="halt_organization resume_organization",
            cli="org halt, org resume",
        ),
        Deed(
            "Choose the organization to work in",
            admin="switch_organization",
            why="Every request names its own (`Bonobot-Organization`), and every verb (`--org`).",
        ),
        Deed(
            "Add an organization",
            admin="organization.add",
            why="A platform administrator's, who then invites its owner; a token is of one.",
            cli="org add",
        ),
        Deed(
            "Remove an organization",
            cli="org delete",
            why="Everything goes: on the host, after an export; in the admin only an empty one.",
        ),
        Deed(
            "Take an organization along",
            cli="org export",
            why="A folder on the host.",
        ),
        Deed(
            "Members",
            admin="membership.list membership.change membership.delete",
            rest="list_members get_member change_member remove_member",
            cli="members list, members set-role, members remove",
        ),
        Deed(
            "Add an account as a member",
            admin="membership.add",
            cli="members add",
            why="A platform administrator's: others invite, and learn of no account.",
        ),
        Deed(
            "Invite people",
            admin="invitation.list invitation.add",
            rest="list_invitations get_invitation invite",
            cli="members invite",
        ),
        Deed(
            "Send an invitation again",
            admin="invitation.send",
            rest="send_invitation",
            cli="members send-again",
        ),
        Deed(
            "Revoke an invitation",
            admin="invitation.revoke",
            rest="revoke_invitation",
            cli="members revoke",
        ),
        Deed(
            "Let a member choose a new password",
            admin="membership!offer_chosen",
            rest="offer_password_reset",
            cli="members reset-password",
        ),
        Deed(
            "Reset a lost second factor",
            admin="membership!reset_chosen",
            rest="reset_second_factor",
            cli="members reset-second-factor",
        ),
        Deed(
            "One's own profile",
            admin="profile",
            rest="get_me change_me",
            cli="members set",
        ),
        Deed(
            "One's own e-mail address",
            admin="profile_email profile_proof",
            cli="members set",
            why="A link that is mailed proves it; the command line's is a platform administrator.",
        ),
        Deed(
            "Identity providers that people sign in by",
            admin="provider.list provider.add provider.change provider.delete",
            rest=(
                "list_identity_providers get_identity_provider add_identity_provider "
                "change_identity_provider remove_identity_provider"
            ),
            cli="sso list, sso add, sso set, sso remove",
        ),
        Deed(
            "Ask an identity provider for its keys",
            admin="provider!check_chosen",
            rest="check_identity_provider",
            cli="sso check",
        ),
        Deed(
            "Link a provider's account to one's own",
            admin="profile_link profile_unlink",
            why="A person's browser has to go there.",
        ),
        Deed(
            "Where one is signed in, and out of it",
            admin="profile_sessions",
            rest="sign_out_elsewhere",
            cli="members sign-out",
        ),
        Deed(
            "People",
            admin="user.list user.add user.change user_password_change",
            why="People are the installation's, of no organization.",
        ),
        Deed(
            "Tokens",
            admin="token.list token.change",
            rest="list_tokens get_token change_token",
            cli="tokens list, tokens set",
        ),
        Deed(
            "Make a token",
            admin="token.add",
            rest="create_token",
            cli="tokens create",
        ),
        Deed(
            "Revoke tokens",
            admin="token!revoke_chosen",
            rest="revoke_token",
            cli="tokens revoke",
        ),
        Deed(
            "See and end what one let programs do",
            admin="let_in",
            rest="list_let_in end_let_in",
            cli="tokens list, tokens revoke",
        ),
        Deed(
            "See the programs that people let in, remove one",
            admin="programs",
            rest="list_tokens revoke_token",
            cli="tokens list, tokens revoke",
        ),
        Deed(
            "Issuers whose tokens are taken",
            admin="issuer.list issuer.add issuer.change issuer.delete",
            rest=(
                "list_token_issuers get_token_issuer add_token_issuer change_token_issuer "
                "remove_token_issuer"
            ),
            cli="issuers list, issuers add, issuers set, issuers remove",
        ),
        Deed(
            "Ask an issuer for its keys",
            admin="issuer!check_chosen",
            rest="check_token_issuer",
            cli="issuers check",
        ),
    ),
)
