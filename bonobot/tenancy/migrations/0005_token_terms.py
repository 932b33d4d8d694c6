from django.db import migrations, models
from django.db.models import functions


def name_agents(apps, schema_editor):
    """Take over the one agent that a token was narrowed to."""
    Token = apps.get_model("tenancy", "Token")
    for token in Token.objects.exclude(agent_id=None):
        token.agent_ids = [str(token.agent_id)]
        token.save(update_fields=["agent_ids"])


def name_one_agent(apps, schema_editor):
    """Keep a single agent; a token for several can't be said in the old way, and is revoked."""
    Token = apps.get_model("tenancy", "Token")
    for token in Token.objects.exclude(agent_ids=[]):
        token.agent_id = token.agent_ids[0]
        if len(token.agent_ids) > 1 and token.revoked_at is None:
            token.revoked_at = functions.Now()
        token.save(update_fields=["agent_id", "revoked_at"])


class Migration(migrations.Migration):

    dependencies = [
        ("tenancy", "0004_organization_rates"),
    ]

    operations = [
        migrations.AddField(
            model_name="token",
            name="agent_ids",
            field=models.JSONField(blank=True, default=list, verbose_name="only for agents"),
        ),
        migrations.AddField(
            model_name="token",
            name="scopes",
            field=models.JSONField(blank=True, default=list, verbose_name="scopes"),
        ),
        migrations.AddField(
            model_name="token",
            name="networks",
            field=models.JSONField(blank=True, default=list, verbose_name="only from networks"),
        ),
        migrations.AddField(
            model_name="token",
            name="client",
            field=models.CharField(
                blank=True, default="", max_length=64, verbose_name="for program"
            ),
        ),
        migrations.RunPython(name_agents, name_one_agent),
        migrations.RemoveField(model_name="token", name="agent_id"),
    ]
