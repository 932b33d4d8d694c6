"""One of every object of an organization, by the names of URL parameters."""

from agents.evaluation.recordings import create_recording
from agents.evaluation.replays import ReplayOverrides, create_replay
from agents.images import store_images
from agents.llm.interface import ImageData
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, ElicitationRequest, Session, WorkflowRun
from agents.skills import SkillSpec, delete_skill, save_skill
from agents.workflows.runs import run_workflow
from bonobot.accounts.invitations import create_invitation
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Definition, Preset, Server
from tests import factories


def create_everything(organization: Organization, suffix: str = "") -> dict[str, str]:
    """Create one of every object that a URL can name; return ids by the parameters' names.

    Names end in `suffix`, so that an organization can have two of each.
    """
    administrator = factories.build_administrator(organization)
    agent = factories.create_agent(organization, f"helper{suffix}")
    endpoint = save_endpoint(
        administrator, ModelEndpointSpec(name=f"Spare{suffix}", kind="offline", model="offline")
    )
    server = Server.objects.create(
        organization=organization, scope_id=agent.pk, name="s", slug="s", transport_type="http"
    )
    agent.agent_servers.create(organization=organization, server=server)
    member = factories.create_member(
        organization, Role.MEMBER, f"member{suffix}-{organization.slug}"
    )
    preset = Preset.objects.create(
        organization=organization, slug=f"ours{suffix}", name=f"Ours{suffix}", transport_type="http"
    )
    agent.members.set([member.id])
    definition = Definition.objects.create(
        organization=organization, server=server, kind="tool", name="one", payload={}, digest="d"
    )
    token, _ = create_token(administrator, name=f"spare{suffix}", role=Role.AUDITOR)
    note = agent.notes.create(organization=organization, title="one", text="Something.")
    skill = save_skill(
        administrator, SkillSpec(name=f"tell{suffix}", text="Hello", agents=[agent.slug])
    )
    spare_skill = save_skill(administrator, SkillSpec(name=f"spare{suffix}", text="Hello"))
    deletion = delete_skill(administrator, spare_skill)
    assert deletion is not None
    workflow = factories.create_workflow(agent, f"tell{suffix}")
    run = run_workflow(administrator, workflow, {})
    recording = create_recording(administrator, factories.create_answered_session(agent))
    replay = create_replay(administrator, recording, ReplayOverrides())
    notification = factories.create_notification(organization, f"Pager{suffix}")
    session, approval = factories.create_waiting_session(agent, "hello")
    grant = session.grants.create(
        organization=organization, agent=agent, own_name="one", label="one", granted_by="anna"
    )
    (image,) = store_images(
        organization.pk, [ImageData("image/png", b"GIF89a" + organization.pk.bytes)]
    )
    session.steps.create(seq=99, kind="notice", state="done", payload={"images": [image]})
    invitation = create_invitation(
        factories.build_administrator(organization), f"anna{suffix}@example.com", Role.MEMBER
    )
    return {
        "sha256": image["sha256"],
        "agent_id": str(agent.pk),
        "server_id": str(server.pk),
        "definition_id": str(definition.pk),
        "session_id": str(session.pk),
        "access_request_id": str(factories.create_access_request(organization).pk),
        "approval_id": str(approval.pk),
        "request_id": str(factories.create_elicitation(session, server).pk),
        "session_approval_id": str(grant.pk),
        "endpoint_id": str(endpoint.pk),
        "token_id": str(token.pk),
        "issuer_id": str(
            factories.create_issuer(
                organization, f"https://{organization.slug}{suffix}.example.com", f"Login{suffix}"
            ).pk
        ),
        "provider_id": str(
            factories.create_provider(
                organization, f"https://{organization.slug}{suffix}.example.com", f"ID{suffix}"
            ).pk
        ),
        "workflow_id": str(workflow.pk),
        "run_id": str(run.pk),
        "recording_id": str(recording.pk),
        "replay_id": str(replay.pk),
        "trigger_id": str(factories.create_trigger(workflow).pk),
        "skill_id": str(skill.pk),
        "deletion_id": str(deletion.pk),
        "note_id": str(note.pk),
        "channel_id": str(notification.channel_id),
        "notification_id": str(notification.pk),
        "audit_id": str(AuditRow.objects.filter(organization_id=organization.pk).first().pk),
        "name": "mcp_s_one",
        "user_id": member.id,
        "member_id": str(Membership.objects.get(organization=organization, user=member.id).pk),
        "invitation_id": str(invitation.invitation.pk),
        "preset_id": str(preset.pk),
    }


def create_own_objects(principal: Principal, agent: Agent, word: str) -> dict[str, str]:
    """Create a session of the principal, with pending requests and a workflow run."""
    starter = {"started_by_kind": principal.kind, "started_by_id": principal.id}
    requester = {
        "requested_by_kind": principal.kind,
        "requested_by_id": principal.id,
        "requested_by": principal.label,
    }
    session = Session.objects.create(
        organization=agent.organization, agent=agent, title=f"Own of {word}", **starter
    )
    approval = factories.create_approval(agent, session, reason=f"Own {word}", **requester)
    elicitation = factories.create_elicitation(session, agent.agent_servers.get().server)
    ElicitationRequest.objects.filter(pk=elicitation.pk).update(message=f"Own {word}", **requester)
    access_request = factories.create_access_request(
        agent.organization, agent=agent, reason=f"Own {word}", **requester
    )
    session_approval = session.grants.create(
        organization=agent.organization, agent=agent, own_name="one", label="one", granted_by="anna"
    )
    workflow = agent.workflows.order_by("name")[0]
    run = WorkflowRun.objects.create(
        organization=agent.organization,
        workflow=workflow,
        name=workflow.name,
        session=session,
        version=workflow.version,
        definition=workflow.definition,
    )
    return {
        "session_id": str(session.pk),
        "session_approval_id": str(session_approval.pk),
        "access_request_id": str(access_request.pk),
        "approval_id": str(approval.pk),
        "request_id": str(elicitation.pk),
        "run_id": str(run.pk),
        "workflow_id": str(workflow.pk),
    }
