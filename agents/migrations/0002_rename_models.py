"""Rename models; the tables keep their names."""

from django.db import migrations

from bonobot.core.crypto.encrypted_fields import SealedJSONField
from bonobot.core.db.migration_operations import BatchedMigration, rename_model


class Migration(BatchedMigration):
    """Renames 7 models."""

    dependencies = [("agents", "0001_initial")]

    operations = [
        *rename_model("Binding", "AgentServer", table="agents_binding"),
        *rename_model("Given", "AgentAssignment", table="agents_given"),
        *rename_model("SessionGrant", "SessionApproval", table="agents_sessiongrant"),
        *rename_model("Question", "ElicitationRequest", table="agents_question"),
        *rename_model("Exchange", "PendingCall", table="agents_exchange"),
        *rename_model("Promise", "DeferredCall", table="agents_promise"),
        *rename_model("Handover", "CallHandoff", table="agents_handover"),
        # Encrypted values are bound to the label under which they were encrypted.
        migrations.AlterField(
            "deferredcall", "request", SealedJSONField(default=dict, label="agents.promise.request")
        ),
        migrations.AlterField(
            "deferredcall",
            "answer",
            SealedJSONField(blank=True, default=dict, label="agents.promise.answer"),
        ),
        migrations.AlterField(
            "elicitationrequest",
            "content",
            SealedJSONField(blank=True, default=dict, label="agents.question.content"),
        ),
        migrations.AlterField(
            "pendingcall",
            "responses",
            SealedJSONField(blank=True, default=dict, label="agents.exchange.responses"),
        ),
    ]
