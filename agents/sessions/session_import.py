"""Import an exported session into an agent.

The imported session is finished: nothing runs until someone sends it a message. Its texts may come
from anywhere, so it has the flow labels of untrusted content and private data, results are framed
as data for the model, and the organization's secrets are masked.
"""

from functools import partial
from typing import Any

from django.utils import timezone

from agents.flow_labels.session_labels import label_imported_session
from agents.models import Agent, Session, Step
from agents.policies.queries import require_enabled
from agents.sessions.output_schemas import map_texts
from agents.sessions.services import MAX_TITLE_LENGTH, require_run_permission
from agents.sessions.session_import_file import SessionFile
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.ledger.audit.admin_changes import record_change

IMPORT_NOTICE_CODE = "session_imported"


def import_session(principal: Principal, agent: Agent, file: SessionFile) -> Session:
    """Create a finished session of an agent from an exported one; nothing is executed.

    Raises `NotFound` (another organization's agent), `Forbidden`, `Conflict` (`agent_disabled`).
    """
    require_run_permission(principal, agent)
    require_enabled(agent)
    mask = partial(mask_organization_secrets, organization_id=agent.organization_id)
    session = _build_session(principal, agent, file, mask(file.title), mask(file.error_detail))
    notice = Step(
        seq=1,
        kind=Step.Kind.NOTICE,
        state=Step.State.DONE,
        payload={"code": IMPORT_NOTICE_CODE, "text": mask(_describe_import(principal, file))},
    )
    steps = [notice, *file.steps]
    now = timezone.now()
    for step in steps:
        step.session, step.finished_at = session, now
        step.payload = map_texts(step.payload, mask)
    with record_change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="session_imported",
        resource_type="session",
        resource_id=str(session.pk),
        resource_name=session.title,
        details=_build_details(agent, file),
        governed=False,
    ):
        session.save(force_insert=True)
        Step.objects.bulk_create(steps, batch_size=500)
        label_imported_session(principal, session)
    return session


def _build_session(
    principal: Principal, agent: Agent, file: SessionFile, title: str, error_detail: str
) -> Session:
    """Return the unsaved session; tokens and cost are zero, since nothing was spent here."""
    return Session(
        organization_id=agent.organization_id,
        agent=agent,
        title=(" ".join(title.split()) or "Imported session")[:MAX_TITLE_LENGTH],
        status=file.status,
        error_code=file.error_code,
        error_detail=error_detail,
        started_by_kind=principal.kind,
        started_by_id=principal.id,
        started_by=principal.label,
        token_id=principal.token_id,
        token_calls_per_minute=principal.calls_per_minute,
        turns=file.turns,
        calls=file.calls,
        finished_at=timezone.now(),
    )


def _describe_import(principal: Principal, file: SessionFile) -> str:
    text = (
        f"{principal.label} imported this session from a file: nothing in it was done or checked "
        "here."
    )
    if file.omitted_attachments:
        text += f" {file.omitted_attachments} images and files weren't imported."
    return text


def _build_details(agent: Agent, file: SessionFile) -> dict[str, Any]:
    return {
        "agent_id": str(agent.pk),
        "agent": agent.slug,
        "source_session": file.source_id,
        "source_agent": file.source_agent,
        "steps": len(file.steps),
        "sha256": file.digest,
    }
