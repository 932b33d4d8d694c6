"""Rename fields in the code; their columns keep their names."""

from django.db import models

from bonobot.core.db.migration_operations import (
    BatchedMigration,
    rename_field,
    rename_reverse_relation,
)


class Migration(BatchedMigration):
    """Renames 16 fields."""

    dependencies = [("agents", "0003_session_token_rate")]

    operations = [
        rename_field("Agent", "workspace_holds", "workspace_labels"),
        rename_field("AgentAssignment", "callee", "callable_agent"),
        rename_field("Approval", "held", "flow_labels"),
        rename_field("Approval", "word", "message"),
        rename_field("ElicitationRequest", "exchange", "pending_call"),
        rename_field("ModelEndpoint", "sees_images", "image_input"),
        rename_field("ModelEndpoint", "falls_over", "fallback_on"),
        rename_field("DeferredCall", "beaten_at", "heartbeat_at"),
        rename_field("CallHandoff", "said", "responses"),
        rename_field("CallHandoff", "found", "result"),
        rename_field("CallHandoff", "beaten_at", "heartbeat_at"),
        rename_field("Recording", "made_by", "created_by"),
        rename_field("Runner", "beat_at", "heartbeat_at"),
        rename_field("Inbox", "taken_at", "processed_at"),
        rename_field("SkillVersion", "made_by", "created_by"),
        rename_field("WorkflowVersion", "made_by", "created_by"),
        rename_reverse_relation(
            "AgentServer",
            "agent",
            models.ForeignKey("agents.agent", models.CASCADE, related_name="agent_servers"),
        ),
        rename_reverse_relation(
            "AgentAssignment",
            "agent",
            models.ForeignKey("agents.agent", models.CASCADE, related_name="assignments"),
        ),
        rename_reverse_relation(
            "AgentAssignment",
            "skill",
            models.ForeignKey(
                "agents.skill", models.CASCADE, null=True, related_name="assignments"
            ),
        ),
        rename_reverse_relation(
            "AgentAssignment",
            "workflow",
            models.ForeignKey(
                "agents.workflow", models.CASCADE, null=True, related_name="assignments"
            ),
        ),
        rename_reverse_relation(
            "AgentAssignment",
            "callable_agent",
            models.ForeignKey(
                "agents.agent",
                models.CASCADE,
                null=True,
                db_column="callee_id",
                related_name="callable_from",
            ),
        ),
        rename_reverse_relation(
            "PendingCall",
            "session",
            models.ForeignKey("agents.session", models.CASCADE, related_name="pending_calls"),
        ),
        rename_reverse_relation(
            "ElicitationRequest",
            "agent",
            models.ForeignKey("agents.agent", models.CASCADE, related_name="elicitation_requests"),
        ),
        rename_reverse_relation(
            "ElicitationRequest",
            "session",
            models.ForeignKey(
                "agents.session", models.CASCADE, related_name="elicitation_requests"
            ),
        ),
        rename_reverse_relation(
            "ElicitationRequest",
            "pending_call",
            models.ForeignKey(
                "agents.pendingcall",
                models.CASCADE,
                null=True,
                db_column="exchange_id",
                related_name="elicitation_requests",
            ),
        ),
    ]
