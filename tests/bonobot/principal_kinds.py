"""The kinds of objects that the tests of principals compare, by the interfaces that show them."""

from dataclasses import dataclass

from bonobot.accounts.roles import Action

READS = (Action.VIEW, Action.RUN_AGENTS)


@dataclass(frozen=True)
class Kind:
    """A kind of object; `closed`: not for limited principals, `personal`: own ones only."""

    part: str
    path: str
    listing: str
    opens: tuple[Action, ...] = READS
    closed: bool = False
    personal: bool = False
    resource: str = ""
    admin: str = ""


KINDS = {
    "agent": Kind("agent_id", "agents/{}", "agents", resource="agents", admin="agents_agent"),
    "session": Kind(
        "session_id",
        "sessions/{}",
        "sessions",
        personal=True,
        resource="sessions",
        admin="agents_session",
    ),
    "approval": Kind(
        "approval_id", "approvals/{}", "approvals", personal=True, admin="agents_approval"
    ),
    "access_request": Kind(
        "access_request_id",
        "access-requests/{}",
        "access-requests",
        personal=True,
        admin="agents_accessrequest",
    ),
    "question": Kind(
        "request_id",
        "elicitation-requests/{}",
        "elicitation-requests",
        personal=True,
        admin="agents_elicitationrequest",
    ),
    "skill": Kind("skill_id", "skills/{}", "skills", admin="agents_skill"),
    "workflow": Kind(
        "workflow_id", "workflows/{}", "workflows", resource="workflows", admin="agents_workflow"
    ),
    "run": Kind("run_id", "workflow-runs/{}", "workflows/{workflow_id}/runs", personal=True),
    "recording": Kind("recording_id", "recordings/{}", "recordings", (Action.VIEW,)),
    "budgets": Kind("agent_id", "agents/{}/budgets", "", (Action.VIEW,)),
    "note": Kind(
        "note_id", "agents/{agent_id}/notes/{}", "agents/{agent_id}/notes", (Action.VIEW,), True
    ),
    "trigger": Kind(
        "trigger_id",
        "workflows/{workflow_id}/triggers/{}",
        "workflows/{workflow_id}/triggers",
        (Action.VIEW,),
        True,
    ),
    "server": Kind("server_id", "mcp-servers/{}", "", (Action.VIEW,), True),
    "definition": Kind(
        "definition_id", "mcp-servers/{server_id}/definitions/{}", "", (Action.VIEW,), True
    ),
    "endpoint": Kind(
        "endpoint_id",
        "model-endpoints/{}",
        "model-endpoints",
        (Action.VIEW,),
        True,
        admin="agents_modelendpoint",
    ),
    "token": Kind(
        "token_id", "tokens/{}", "tokens", (Action.MANAGE_TOKENS,), True, admin="tenancy_token"
    ),
    "issuer": Kind(
        "issuer_id", "external-issuers/{}", "external-issuers", (Action.MANAGE_ISSUERS,), True
    ),
    "member": Kind("member_id", "members/{}", "members", (Action.VIEW,), True),
    "audit": Kind(
        "audit_id",
        "audit/{}",
        "audit?limit=500",
        (Action.VIEW_AUDIT,),
        True,
        admin="ledger_auditrow",
    ),
    "usage": Kind("", "usage", "", (Action.VIEW_AUDIT,), True),
    "channel": Kind(
        "channel_id",
        "notification-channels/{}",
        "notification-channels",
        (Action.VIEW_AUDIT,),
        True,
        admin="notices_notificationchannel",
    ),
    "notification": Kind("notification_id", "", "notifications", (Action.VIEW_AUDIT,), True),
    "deletion": Kind(
        "deletion_id",
        "",
        "deletions",
        (Action.MANAGE_AGENTS, Action.MANAGE_SERVERS, Action.MANAGE_WORKFLOWS),
        True,
    ),
    "session_approval": Kind(
        "session_approval_id", "", "sessions/{session_id}/approvals", personal=True
    ),
    "preset": Kind("preset_id", "presets/{}", "", (Action.VIEW,), True),
    "provider": Kind(
        "provider_id",
        "identity-providers/{}",
        "identity-providers",
        (Action.MANAGE_ORGANIZATION,),
        True,
        admin="tenancy_provider",
    ),
    "invitation": Kind(
        "invitation_id",
        "invitations/{}",
        "invitations",
        (Action.MANAGE_MEMBERS,),
        True,
        admin="tenancy_invitation",
    ),
    "replay": Kind(
        "replay_id",
        "recordings/{recording_id}/replays/{}",
        "recordings/{recording_id}/replays",
        (Action.VIEW,),
    ),
}
# Path parameters of objects that only actions have, and of parts of objects.
PARTS_OF_OTHERS = {
    "user_id": "a member of an agent, who is in the row of members",
    "name": "a tool of an agent or an operation of a server",
    "sha256": "an image or a file of a session",
}
