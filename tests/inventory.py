"""One of everything that an organization can have, by the names that addresses give it."""

from agents.evaluation.services import ReplayOverrides, create_recording, create_replay
from agents.images import store_images
from agents.llm.interface import ImageData
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.skills.services import SkillSpec, save_skill
from agents.workflows.services import run_workflow
from bonobot.accounts.invitations import create_invitation
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Definition, Preset, Server
from tests import factories


def everything(where: Organization, mark: str = "") -> dict[str, str]:
    """Make one of everything that an address can name, and return their ids by the parts' names.

    Names end in `mark`, so that an organization can have all of it twice.
    """
    boss = factories.build_administrator(where)
    agent = factories.create_agent(where, f"helper{mark}")
    endpoint = save_endpoint(
        boss, ModelEndpointSpec(name=f"Spare{mark}", kind="offline", model="offline")
    )
    server = Server.objects.create(
        organization=where, scope_id=agent.pk, name="s", slug="s", transport_type="http"
    )
    agent.agent_servers.create(organization=where, server=server)
    member = factories.create_member(where, Role.MEMBER, f"member{mark}-{where.slug}")
    preset = Preset.objects.create(
        organization=where, slug=f"ours{mark}", name=f"Ours{mark}", transport_type="http"
    )
    agent.members.set([member.id])
    definition = Definition.objects.create(
        organization=where, server=server, kind="tool", name="one", payload={}, digest="d"
    )
    token, _ = create_token(boss, name=f"spare{mark}", role=Role.AUDITOR)
    note = agent.notes.create(organization=where, title="one", text="Something.")
    skill = save_skill(boss, SkillSpec(name=f"tell{mark}", text="Hello", agents=[agent.slug]))
    workflow = factories.create_workflow(agent, f"tell{mark}")
    run = run_workflow(boss, workflow, {})
    recording = create_recording(boss, factories.create_answered_session(agent))
    replayed = create_replay(boss, recording, ReplayOverrides())
    notice = factories.create_notification(where, f"Pager{mark}")
    session, approval = factories.create_waiting_session(agent, "hello")
    grant = session.grants.create(
        organization=where, agent=agent, own_name="one", label="one", granted_by="anna"
    )
    (image,) = store_images(where.pk, [ImageData("image/png", b"GIF89a" + where.pk.bytes)])
    session.steps.create(seq=99, kind="notice", state="done", payload={"images": [image]})
    offered = create_invitation(
        factories.build_administrator(where), f"anna{mark}@example.com", Role.MEMBER
    )
    return {
        "sha256": image["sha256"],
        "agent_id": str(agent.pk),
        "server_id": str(server.pk),
        "definition_id": str(definition.pk),
        "session_id": str(session.pk),
        "approval_id": str(approval.pk),
        "request_id": str(factories.create_elicitation(session, server).pk),
        "session_approval_id": str(grant.pk),
        "endpoint_id": str(endpoint.pk),
        "token_id": str(token.pk),
        "issuer_id": str(
            factories.create_issuer(
                where, f"https://{where.slug}{mark}.example.com", f"Login{mark}"
            ).pk
        ),
        "provider_id": str(
            factories.create_provider(
                where, f"https://{where.slug}{mark}.example.com", f"ID{mark}"
            ).pk
        ),
        "workflow_id": str(workflow.pk),
        "run_id": str(run.pk),
        "recording_id": str(recording.pk),
        "replay_id": str(replayed.pk),
        "trigger_id": str(factories.create_trigger(workflow).pk),
        "skill_id": str(skill.pk),
        "note_id": str(note.pk),
        "channel_id": str(notice.channel_id),
        "notification_id": str(notice.pk),
        "audit_id": str(AuditRow.objects.filter(organization_id=where.pk).first().pk),
        "name": "mcp_s_one",
        "user_id": member.id,
        "member_id": str(Membership.objects.get(organization=where, user=member.id).pk),
        "invitation_id": str(offered.invitation.pk),
        "preset_id": str(preset.pk),
    }
