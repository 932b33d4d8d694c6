from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [
        ("ledger", "0001_initial"),
        ("ledger", "0002_flows_and_permits"),
        ("ledger", "0003_checkpoints"),
        ("ledger", "0004_rollups"),
        ("ledger", "0005_audit_named"),
    ]

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AuditRow",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("seq", models.BigIntegerField()),
                ("digest", models.CharField(max_length=64)),
                ("opened", models.TextField()),
                ("opened_at", models.DateTimeField()),
                ("closed_seq", models.BigIntegerField(null=True)),
                ("closed_digest", models.CharField(db_default="", default="", max_length=64)),
                ("closed", models.TextField(db_default="", default="")),
                ("closed_at", models.DateTimeField(null=True)),
                ("action", models.CharField(max_length=64)),
                ("event_type", models.CharField(max_length=64)),
                ("resource_type", models.CharField(max_length=64)),
                ("resource_id", models.CharField(max_length=255)),
                ("resource_name", models.CharField(max_length=255)),
                ("actor_kind", models.CharField(max_length=16)),
                ("actor_id", models.CharField(max_length=255)),
                ("actor_label", models.CharField(max_length=255)),
                (
                    "decision",
                    models.CharField(
                        choices=[("allow", "Allow"), ("deny", "Deny"), ("ask", "Ask")],
                        max_length=16,
                    ),
                ),
                ("rule", models.CharField(max_length=255)),
                ("code", models.CharField(max_length=64)),
                ("agent_id", models.UUIDField(null=True)),
                ("agent_name", models.CharField(max_length=255)),
                ("server_id", models.UUIDField(null=True)),
                ("server_name", models.CharField(max_length=255)),
                ("tool_name", models.CharField(max_length=255)),
                ("session_id", models.UUIDField(null=True)),
                ("parent_id", models.UUIDField(null=True)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("ok", "Ok"),
                            ("error", "Error"),
                            ("refused", "Refused"),
                            ("unknown", "Unknown"),
                            ("cancelled", "Cancelled"),
                        ],
                        db_default="open",
                        default="open",
                        max_length=16,
                    ),
                ),
                ("duration_ms", models.BigIntegerField(null=True)),
                ("input_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("output_tokens", models.BigIntegerField(db_default=0, default=0)),
                ("cost_microusd", models.BigIntegerField(db_default=0, default=0)),
                ("repeats", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name": "row of the audit",
                "verbose_name_plural": "rows of the audit",
                "base_manager_name": "objects",
                "indexes": [
                    models.Index(
                        fields=["organization_id", "-opened_at"], name="ledger_audit_time"
                    ),
                    models.Index(
                        condition=models.Q(("agent_id__isnull", False)),
                        fields=["organization_id", "agent_id", "-opened_at"],
                        name="ledger_audit_agent",
                    ),
                    models.Index(
                        condition=models.Q(("server_id__isnull", False)),
                        fields=["organization_id", "server_id", "-opened_at"],
                        name="ledger_audit_server",
                    ),
                    models.Index(
                        condition=models.Q(("session_id__isnull", False)),
                        fields=["organization_id", "session_id", "-opened_at"],
                        name="ledger_audit_session",
                    ),
                    models.Index(
                        fields=["organization_id", "tool_name", "-opened_at"],
                        name="ledger_audit_tool",
                    ),
                    models.Index(
                        fields=["organization_id", "code", "-opened_at"], name="ledger_audit_code"
                    ),
                    models.Index(
                        fields=["organization_id", "outcome", "-opened_at"],
                        name="ledger_audit_outcome",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization_id", "seq"), name="ledger_auditrow_one_chain"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BudgetCell",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField(db_index=True)),
                ("spent", models.BigIntegerField(db_default=0, default=0)),
                ("reserved", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("reserved__gte", 0), ("spent__gte", 0)),
                        name="ledger_budgetcell_not_negative",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Checkpoint",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("seq", models.BigIntegerField()),
                ("digest", models.CharField(max_length=64)),
                ("statement", models.JSONField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization_id", "seq"), name="ledger_checkpoint_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Counted",
            fields=[
                ("organization_id", models.UUIDField(primary_key=True, serialize=False)),
                ("seq", models.BigIntegerField(db_default=0, default=0)),
                ("head", models.BigIntegerField(db_default=0, default=0)),
                ("since", models.DateTimeField(null=True)),
                ("version", models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="FlowCell",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField(db_index=True)),
                ("labels", models.BigIntegerField(db_default=0, default=0)),
                ("touched", models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Head",
            fields=[
                ("organization_id", models.UUIDField(primary_key=True, serialize=False)),
                ("seq", models.BigIntegerField(db_default=0, default=0)),
                (
                    "digest",
                    models.CharField(
                        db_default="0000000000000000000000000000000000000000000000000000000000000000",
                        default="0000000000000000000000000000000000000000000000000000000000000000",
                        max_length=64,
                    ),
                ),
                ("generation", models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="PermitRow",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("digest", models.CharField(max_length=64)),
                ("expires", models.BigIntegerField(db_index=True)),
                ("spent_by", models.UUIDField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="RateCell",
            fields=[
                ("key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("tat", models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("key", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                (
                    "grain",
                    models.CharField(choices=[("hour", "Hour"), ("day", "Day")], max_length=4),
                ),
                ("begins", models.DateTimeField()),
                ("event_type", models.CharField(max_length=64)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("ok", "Ok"),
                            ("error", "Error"),
                            ("refused", "Refused"),
                            ("unknown", "Unknown"),
                            ("cancelled", "Cancelled"),
                        ],
                        max_length=16,
                    ),
                ),
                ("code", models.CharField(max_length=64)),
                ("rule", models.CharField(max_length=255)),
                ("agent_id", models.UUIDField(null=True)),
                ("agent_name", models.CharField(max_length=255)),
                ("server_id", models.UUIDField(null=True)),
                ("server_name", models.CharField(max_length=255)),
                ("tool_name", models.CharField(max_length=255)),
                ("model", models.CharField(max_length=255)),
                ("calls", models.BigIntegerField()),
                ("duration_ms", models.BigIntegerField()),
                ("input_tokens", models.BigIntegerField()),
                ("output_tokens", models.BigIntegerField()),
                ("cost_microusd", models.BigIntegerField()),
                ("took_0", models.BigIntegerField(db_default=0, default=0)),
                ("took_1", models.BigIntegerField(db_default=0, default=0)),
                ("took_2", models.BigIntegerField(db_default=0, default=0)),
                ("took_3", models.BigIntegerField(db_default=0, default=0)),
                ("took_4", models.BigIntegerField(db_default=0, default=0)),
                ("took_5", models.BigIntegerField(db_default=0, default=0)),
                ("took_6", models.BigIntegerField(db_default=0, default=0)),
                ("took_7", models.BigIntegerField(db_default=0, default=0)),
                ("took_8", models.BigIntegerField(db_default=0, default=0)),
                ("took_9", models.BigIntegerField(db_default=0, default=0)),
                ("took_10", models.BigIntegerField(db_default=0, default=0)),
                ("took_11", models.BigIntegerField(db_default=0, default=0)),
                ("took_12", models.BigIntegerField(db_default=0, default=0)),
                ("took_13", models.BigIntegerField(db_default=0, default=0)),
                ("took_14", models.BigIntegerField(db_default=0, default=0)),
                ("took_15", models.BigIntegerField(db_default=0, default=0)),
                ("took_16", models.BigIntegerField(db_default=0, default=0)),
                ("took_17", models.BigIntegerField(db_default=0, default=0)),
                ("took_18", models.BigIntegerField(db_default=0, default=0)),
                ("took_19", models.BigIntegerField(db_default=0, default=0)),
                ("took_20", models.BigIntegerField(db_default=0, default=0)),
                ("took_21", models.BigIntegerField(db_default=0, default=0)),
                ("took_22", models.BigIntegerField(db_default=0, default=0)),
                ("took_23", models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["organization_id", "grain", "begins"], name="ledger_rollup_time"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Uncounted",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("seq", models.BigIntegerField()),
                ("opened_at", models.DateTimeField()),
                ("refused", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["organization_id", "seq"], name="ledger_uncounted_seq")
                ],
            },
        ),
    ]
