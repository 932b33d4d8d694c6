"""Rename models; the tables keep their names."""

from django.db import migrations
from django.db.migrations.operations.base import Operation

from bonobot.core.crypto.encrypted_fields import SealedJSONField


def rename(old: str, new: str, table: str) -> list[Operation]:
    """Rename a model in the state only: its table keeps its name."""
    return [
        migrations.AlterModelTable(name=old.lower(), table=table),
        migrations.RenameModel(old_name=old, new_name=new),
    ]


class Migration(migrations.Migration):
    """Renames 7 models."""

    dependencies = [("agents", "0001_initial")]

    operations = [
        *rename("Binding", "AgentServer", "agents_binding"),
        *rename("Given", "AgentAssignment", "agents_given"),
        *rename("SessionGrant", "SessionApproval", "agents_sessiongrant"),
        *rename("Question", "ElicitationRequest", "agents_question"),
        *rename("Exchange", "PendingCall", "agents_exchange"),
        *rename("Promise", "DeferredCall", "agents_promise"),
        *rename("Handover", "CallHandoff", "agents_handover"),
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
