import bonobot.lib.ordered_json
import bonobot.lib.sealed
import django.core.validators
import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [
        ("agents", "0001_initial"),
        ("agents", "0002_offers"),
        ("agents", "0003_approvals"),
        ("agents", "0004_policy_drafts"),
        ("agents", "0005_budget_scopes"),
        ("agents", "0006_answer_length"),
        ("agents", "0007_model_providers"),
        ("agents", "0008_images"),
        ("agents", "0009_notes"),
        ("agents", "0010_skills"),
        ("agents", "0011_tool_search"),
        ("agents", "0012_kept_files"),
        ("agents", "0013_callees"),
        ("agents", "0014_exchanges"),
        ("agents", "0015_context_window"),
        ("agents", "0016_workspaces"),
        ("agents", "0017_workflows"),
        ("agents", "0018_recordings"),
        ("agents", "0019_triggers"),
        ("agents", "0020_form_order"),
        ("agents", "0021_promises"),
        ("agents", "0022_handovers"),
    ]

    initial = True

    dependencies = [
        ("mcp_servers", "0001_squashed_0015_asked_back"),
        ("tenancy", "0001_squashed_0007_first_run"),
    ]

    operations = [
        migrations.CreateModel(
            name="ModelEndpoint",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("slug", models.SlugField(max_length=64, verbose_name="slug")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("offline", "offline (built in, not a language model)"),
                            ("openai", "OpenAI-compatible"),
                            ("responses", "OpenAI Responses API"),
                            ("azure", "Azure OpenAI"),
                            ("anthropic", "Anthropic"),
                            ("google", "Google Gemini API"),
                            ("vertex", "Google Vertex AI"),
                            ("bedrock", "Amazon Bedrock"),
                        ],
                        default="openai",
                        max_length=16,
                        verbose_name="kind",
                    ),
                ),
                (
                    "base_url",
                    models.CharField(
                        blank=True, default="", max_length=500, verbose_name="base URL"
                    ),
                ),
                (
                    "api_key",
                    bonobot.lib.sealed.SealedTextField(
                        blank=True, default="", verbose_name="API key"
                    ),
                ),
                (
                    "model",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="model"),
                ),
                (
                    "allow_private",
                    models.BooleanField(default=False, verbose_name="private address allowed"),
                ),
                (
                    "timeout_s",
                    models.PositiveIntegerField(
                        default=120,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="timeout (s)",
                    ),
                ),
                (
                    "input_price",
                    models.PositiveBigIntegerField(
                        blank=True, null=True, verbose_name="input price"
                    ),
                ),
                (
                    "output_price",
                    models.PositiveBigIntegerField(
                        blank=True, null=True, verbose_name="output price"
                    ),
                ),
                (
                    "max_tokens",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="longest answer (tokens)",
                    ),
                ),
                (
                    "context_window",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="context window (tokens)",
                    ),
                ),
                (
                    "region",
                    models.CharField(blank=True, default="", max_length=64, verbose_name="region"),
                ),
                (
                    "access_key_id",
                    models.CharField(
                        blank=True, default="", max_length=128, verbose_name="access key ID"
                    ),
                ),
                (
                    "api_version",
                    models.CharField(
                        blank=True, default="", max_length=32, verbose_name="API version"
                    ),
                ),
                (
                    "thinking",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "as the model does by itself"),
                            ("off", "off, or as little as it can"),
                            ("low", "low"),
                            ("medium", "medium"),
                            ("high", "high"),
                        ],
                        default="",
                        max_length=8,
                        verbose_name="thinking",
                    ),
                ),
                (
                    "native_tools",
                    models.BooleanField(default=True, verbose_name="calls tools natively"),
                ),
                ("sees_images", models.BooleanField(default=False, verbose_name="sees images")),
                (
                    "retries",
                    models.PositiveSmallIntegerField(
                        default=2,
                        validators=[django.core.validators.MaxValueValidator(10)],
                        verbose_name="retries",
                    ),
                ),
                (
                    "falls_over",
                    models.CharField(
                        choices=[
                            ("unavailable", "unreachable, overloaded, failing or silent"),
                            (
                                "any",
                                "any failure of the model, refused credentials and requests too",
                            ),
                        ],
                        default="unavailable",
                        max_length=16,
                        verbose_name="falls back on",
                    ),
                ),
                (
                    "fallback",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="fallback_of",
                        to="agents.modelendpoint",
                        verbose_name="fallback",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "model endpoint",
                "verbose_name_plural": "model endpoints",
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "slug"), name="endpoint_slug")
                ],
            },
        ),
        migrations.CreateModel(
            name="Blob",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("sha256", models.CharField(max_length=64)),
                ("media_type", models.CharField(max_length=32)),
                ("size", models.PositiveIntegerField()),
                ("data", models.BinaryField()),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "kept file",
                "verbose_name_plural": "kept files",
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "sha256"), name="blob_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Skill",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("name", models.SlugField(max_length=64, verbose_name="name")),
                (
                    "title",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="title"),
                ),
                (
                    "description",
                    models.CharField(
                        blank=True, default="", max_length=500, verbose_name="description"
                    ),
                ),
                ("text", models.TextField(max_length=32000, verbose_name="instructions")),
                ("arguments", models.JSONField(blank=True, default=list, verbose_name="arguments")),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("version", models.PositiveIntegerField(default=1, verbose_name="version")),
                ("digest", models.CharField(max_length=64)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "skill",
                "verbose_name_plural": "skills",
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "name"), name="skill_name")
                ],
            },
        ),
        migrations.CreateModel(
            name="Handover",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("held", "Held"),
                            ("asked", "Asked"),
                            ("taken", "Taken"),
                            ("answered", "Answered"),
                            ("left", "Left"),
                        ],
                        default="held",
                        max_length=8,
                    ),
                ),
                ("said", models.TextField(blank=True, default="")),
                ("found", models.TextField(blank=True, default="")),
                ("beaten_at", models.DateTimeField()),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "handover",
                "verbose_name_plural": "handovers",
            },
        ),
        migrations.CreateModel(
            name="Runner",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("host", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField(auto_now_add=True, verbose_name="started")),
                ("beat_at", models.DateTimeField(db_index=True, verbose_name="last heartbeat")),
                ("stopped_at", models.DateTimeField(null=True, verbose_name="stopped")),
            ],
            options={
                "verbose_name": "runner",
                "verbose_name_plural": "runners",
                "ordering": ("-beat_at",),
            },
        ),
        migrations.CreateModel(
            name="Agent",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("slug", models.SlugField(max_length=64, verbose_name="slug")),
                (
                    "description",
                    models.CharField(
                        blank=True, default="", max_length=500, verbose_name="description"
                    ),
                ),
                (
                    "instructions",
                    models.TextField(blank=True, default="", verbose_name="instructions"),
                ),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                (
                    "max_turns",
                    models.PositiveIntegerField(
                        default=50,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="turns per message",
                    ),
                ),
                (
                    "max_calls",
                    models.PositiveIntegerField(default=200, verbose_name="calls per message"),
                ),
                (
                    "max_run_s",
                    models.PositiveIntegerField(
                        default=3600,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="seconds per message",
                    ),
                ),
                (
                    "calls_per_minute",
                    models.PositiveIntegerField(
                        default=60,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="calls a minute",
                    ),
                ),
                (
                    "tool_search_above",
                    models.PositiveIntegerField(default=40, verbose_name="tools shown at once"),
                ),
                (
                    "builtin_tools",
                    models.JSONField(blank=True, default=dict, verbose_name="built-in tools"),
                ),
                (
                    "workspace_folder",
                    models.CharField(
                        blank=True, default="", max_length=1024, verbose_name="attached folder"
                    ),
                ),
                (
                    "workspace_mib",
                    models.PositiveIntegerField(
                        default=256,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="workspace (MiB)",
                    ),
                ),
                (
                    "workspace_files",
                    models.PositiveIntegerField(
                        default=10000,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100000),
                        ],
                        verbose_name="workspace (files)",
                    ),
                ),
                ("workspace_holds", models.PositiveSmallIntegerField(default=0, editable=False)),
                (
                    "members",
                    models.ManyToManyField(
                        blank=True,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="members who may run it",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "model_endpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="agents",
                        to="agents.modelendpoint",
                        verbose_name="model",
                    ),
                ),
            ],
            options={
                "verbose_name": "agent",
                "verbose_name_plural": "agents",
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "slug"), name="agent_slug")
                ],
            },
        ),
        migrations.CreateModel(
            name="SkillVersion",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("number", models.PositiveIntegerField()),
                ("digest", models.CharField(max_length=64)),
                ("payload", models.JSONField()),
                ("made_by", models.CharField(max_length=255)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "skill",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="agents.skill",
                    ),
                ),
            ],
            options={
                "verbose_name": "version of a skill",
                "verbose_name_plural": "versions of skills",
                "ordering": ("-number",),
                "constraints": [
                    models.UniqueConstraint(fields=("skill", "number"), name="skill_version_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Binding",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                (
                    "allowed_tools",
                    models.JSONField(blank=True, default=list, verbose_name="only these tools"),
                ),
                (
                    "denied_tools",
                    models.JSONField(blank=True, default=list, verbose_name="never these tools"),
                ),
                (
                    "allowed_resources",
                    models.JSONField(blank=True, default=list, verbose_name="these resources"),
                ),
                (
                    "allowed_prompts",
                    models.JSONField(blank=True, default=list, verbose_name="these prompts"),
                ),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="bindings",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="mcp_servers.server",
                        verbose_name="server",
                    ),
                ),
            ],
            options={
                "verbose_name": "bound server",
                "verbose_name_plural": "bound servers",
                "ordering": ("server__name",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("agent", "server"), name="binding_once_per_server"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Budget",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "each_session",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="for each session"
                    ),
                ),
                (
                    "unit",
                    models.CharField(
                        choices=[
                            ("tokens", "tokens"),
                            ("microusd", "micro-dollars"),
                            ("calls", "calls"),
                            ("seconds", "seconds"),
                        ],
                        max_length=10,
                        verbose_name="unit",
                    ),
                ),
                (
                    "period",
                    models.CharField(
                        choices=[("day", "a day"), ("month", "a month"), ("total", "in total")],
                        default="month",
                        max_length=6,
                        verbose_name="period",
                    ),
                ),
                ("limit", models.PositiveBigIntegerField(verbose_name="limit")),
                (
                    "warn_at",
                    models.PositiveSmallIntegerField(
                        db_default=80,
                        default=80,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="warn at (%)",
                    ),
                ),
                (
                    "agent",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="budgets",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "budget",
                "verbose_name_plural": "budgets",
                "ordering": ("each_session", "unit", "period"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("agent", "each_session", "unit", "period"),
                        name="budget_once_per_agent",
                    ),
                    models.UniqueConstraint(
                        fields=("server", "unit", "period"), name="budget_once_per_server"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("agent__isnull", True), ("server__isnull", True)),
                        fields=("organization", "unit", "period"),
                        name="budget_once_per_organization",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("server__isnull", True),
                            models.Q(("agent__isnull", True), ("each_session", False)),
                            _connector="OR",
                        ),
                        name="budget_of_one_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("each_session", False), ("agent__isnull", False), _connector="OR"
                        ),
                        name="budget_of_sessions_has_agent",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("warn_at__gte", 1), ("warn_at__lte", 100)),
                        name="budget_warn_at",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Note",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("title", models.CharField(max_length=200, verbose_name="title")),
                ("text", models.TextField(max_length=4000, verbose_name="text")),
                ("labels", models.PositiveSmallIntegerField(default=0, verbose_name="brings")),
                ("written_by", models.CharField(max_length=255, verbose_name="written by")),
                ("session_id", models.UUIDField(null=True)),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notes",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "note",
                "verbose_name_plural": "notes",
                "ordering": ("-updated_at", "-pk"),
                "constraints": [
                    models.UniqueConstraint(fields=("agent", "title"), name="note_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Recording",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("session_id", models.UUIDField(verbose_name="session")),
                ("title", models.CharField(max_length=255, verbose_name="title")),
                ("conversation", models.JSONField()),
                ("size", models.PositiveIntegerField(verbose_name="size (bytes)")),
                ("turns", models.PositiveIntegerField(verbose_name="turns")),
                ("calls", models.PositiveIntegerField(verbose_name="calls")),
                ("tokens", models.PositiveBigIntegerField(verbose_name="tokens")),
                (
                    "cost_microusd",
                    models.PositiveBigIntegerField(verbose_name="cost (micro-dollars)"),
                ),
                ("made_by", models.CharField(max_length=255, verbose_name="recorded by")),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="recordings",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "recording",
                "verbose_name_plural": "recordings",
                "ordering": ("-created_at",),
                "constraints": [
                    models.UniqueConstraint(fields=("agent", "session_id"), name="recording_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Session",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "title",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="title"),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "queued"),
                            ("running", "running"),
                            ("waiting", "waiting for a person"),
                            ("done", "done"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        db_index=True,
                        default="queued",
                        max_length=10,
                        verbose_name="status",
                    ),
                ),
                (
                    "error_code",
                    models.CharField(
                        blank=True, default="", max_length=64, verbose_name="error code"
                    ),
                ),
                ("error_detail", models.TextField(blank=True, default="", verbose_name="error")),
                ("started_by_kind", models.CharField(max_length=10)),
                ("started_by_id", models.CharField(max_length=255)),
                ("started_by", models.CharField(max_length=255, verbose_name="started by")),
                ("token_id", models.UUIDField(null=True)),
                ("root_id", models.UUIDField(null=True)),
                ("depth", models.PositiveSmallIntegerField(default=0)),
                ("fence", models.PositiveBigIntegerField(default=0)),
                ("turns", models.PositiveIntegerField(default=0, verbose_name="turns")),
                ("calls", models.PositiveIntegerField(default=0, verbose_name="calls")),
                (
                    "input_tokens",
                    models.PositiveBigIntegerField(default=0, verbose_name="input tokens"),
                ),
                (
                    "output_tokens",
                    models.PositiveBigIntegerField(default=0, verbose_name="output tokens"),
                ),
                (
                    "cost_microusd",
                    models.PositiveBigIntegerField(default=0, verbose_name="cost (micro-dollars)"),
                ),
                (
                    "working_dir",
                    models.CharField(
                        blank=True, default="", max_length=1024, verbose_name="working folder"
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sessions",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="children",
                        to="agents.session",
                    ),
                ),
                (
                    "runner",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="sessions",
                        to="agents.runner",
                    ),
                ),
            ],
            options={
                "verbose_name": "session",
                "verbose_name_plural": "sessions",
                "ordering": ("-created_at",),
                "indexes": [models.Index(fields=["agent", "-created_at"], name="session_by_agent")],
            },
        ),
        migrations.CreateModel(
            name="StoredResult",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("session_id", models.UUIDField(db_index=True, null=True)),
                ("text", models.TextField()),
                (
                    "agent",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "stored result",
                "verbose_name_plural": "stored results",
            },
        ),
        migrations.CreateModel(
            name="ToolName",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("own_name", models.CharField(max_length=512)),
                ("name", models.CharField(max_length=64)),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tool_names",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "tool name",
                "verbose_name_plural": "tool names",
                "constraints": [
                    models.UniqueConstraint(fields=("agent", "name"), name="toolname_unique"),
                    models.UniqueConstraint(
                        fields=("agent", "server", "own_name"), name="toolname_once_per_tool"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ToolPolicy",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("none", "none: every tool is blocked"),
                            ("allowlist", "allowlist: only what a rule allows"),
                            ("denylist", "denylist: all but what a rule denies"),
                            ("all", "all tools"),
                        ],
                        default="none",
                        max_length=10,
                        verbose_name="mode",
                    ),
                ),
                (
                    "draft",
                    models.JSONField(
                        blank=True, editable=False, null=True, verbose_name="draft in its shadow"
                    ),
                ),
                (
                    "agent",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tool_policy",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "tool policy",
                "verbose_name_plural": "tool policies",
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("agent__isnull", True)),
                        fields=("organization",),
                        name="policy_of_organization_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["none", "allowlist", "denylist", "all"])),
                        name="policy_mode",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Workflow",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("name", models.SlugField(max_length=64, verbose_name="name")),
                (
                    "description",
                    models.CharField(
                        blank=True, default="", max_length=500, verbose_name="description"
                    ),
                ),
                ("source", models.TextField(max_length=65536, verbose_name="definition")),
                ("definition", models.JSONField(default=dict)),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("version", models.PositiveIntegerField(default=1, verbose_name="version")),
                ("digest", models.CharField(max_length=64)),
                ("approved_digest", models.CharField(blank=True, default="", max_length=64)),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="workflows",
                        to="agents.agent",
                        verbose_name="runs as",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "workflow",
                "verbose_name_plural": "workflows",
                "ordering": ("name",),
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "name"), name="workflow_name")
                ],
            },
        ),
        migrations.CreateModel(
            name="Replay",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "queued"),
                            ("running", "running"),
                            ("done", "done"),
                            ("failed", "failed"),
                        ],
                        db_index=True,
                        default="queued",
                        max_length=10,
                        verbose_name="status",
                    ),
                ),
                ("changed", models.JSONField(default=dict)),
                ("rules", models.JSONField(null=True)),
                ("conversation", models.JSONField(null=True)),
                ("differences", models.JSONField(default=list)),
                ("differs", models.BooleanField(null=True, verbose_name="differs")),
                ("tokens", models.PositiveBigIntegerField(default=0, verbose_name="tokens")),
                (
                    "cost_microusd",
                    models.PositiveBigIntegerField(default=0, verbose_name="cost (micro-dollars)"),
                ),
                (
                    "error_code",
                    models.CharField(
                        blank=True, default="", max_length=64, verbose_name="error code"
                    ),
                ),
                ("error_detail", models.TextField(blank=True, default="", verbose_name="error")),
                ("started_by_kind", models.CharField(max_length=10)),
                ("started_by_id", models.CharField(max_length=255)),
                ("started_by", models.CharField(max_length=255, verbose_name="started by")),
                ("fence", models.PositiveIntegerField(default=0)),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished")),
                (
                    "endpoint",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="agents.modelendpoint",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "recording",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="replays",
                        to="agents.recording",
                    ),
                ),
                (
                    "runner",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="agents.runner",
                    ),
                ),
            ],
            options={
                "verbose_name": "replay of a recording",
                "verbose_name_plural": "replays of recordings",
                "ordering": ("-created_at",),
            },
        ),
        migrations.CreateModel(
            name="Approval",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("call_id", models.UUIDField()),
                ("server_id", models.UUIDField(null=True)),
                (
                    "server_name",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="server"),
                ),
                ("own_name", models.CharField(max_length=512, verbose_name="tool")),
                ("label", models.CharField(max_length=512, verbose_name="shown as")),
                ("method", models.CharField(default="tools/call", max_length=32)),
                ("arguments", models.JSONField(default=dict, verbose_name="arguments")),
                ("arguments_digest", models.CharField(max_length=64)),
                ("definition_digest", models.CharField(blank=True, default="", max_length=64)),
                ("rules_digest", models.CharField(max_length=64)),
                ("digest", models.CharField(max_length=64)),
                ("rule", models.CharField(max_length=255, verbose_name="rule")),
                ("code", models.CharField(max_length=64)),
                ("reason", models.TextField(verbose_name="why it is asked")),
                ("held", models.JSONField(default=list, verbose_name="seen before")),
                ("requested_by_kind", models.CharField(max_length=10)),
                ("requested_by_id", models.CharField(max_length=255)),
                ("requested_by", models.CharField(max_length=255, verbose_name="asked by")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waits for a person"),
                            ("approved", "approved"),
                            ("denied", "denied"),
                            ("expired", "expired: that is a no"),
                            ("withdrawn", "withdrawn"),
                        ],
                        default="waiting",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("expires_at", models.DateTimeField(verbose_name="expires")),
                ("decided_at", models.DateTimeField(null=True, verbose_name="decided")),
                (
                    "decided_by",
                    models.CharField(
                        blank=True, default="", max_length=255, verbose_name="decided by"
                    ),
                ),
                (
                    "word",
                    models.TextField(blank=True, default="", verbose_name="word to the model"),
                ),
                (
                    "agent",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approvals",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approvals",
                        to="agents.session",
                    ),
                ),
            ],
            options={
                "verbose_name": "approval",
                "verbose_name_plural": "approvals",
                "ordering": ("-created_at",),
                "indexes": [
                    models.Index(
                        fields=["organization", "state", "-created_at"], name="approval_inbox"
                    ),
                    models.Index(fields=["digest", "-created_at"], name="approval_by_digest"),
                    models.Index(fields=["state", "expires_at"], name="approval_by_expiry"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "waiting")),
                        fields=("organization", "digest"),
                        name="approval_waits_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Exchange",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("input", "asks for input"),
                            ("url", "asks for a visit to a web page"),
                            ("task", "works on a task"),
                        ],
                        max_length=5,
                    ),
                ),
                ("call_id", models.UUIDField(unique=True)),
                ("legs", models.JSONField(default=list)),
                ("server_id", models.UUIDField()),
                ("server_name", models.CharField(max_length=255)),
                ("own_name", models.CharField(max_length=2048)),
                ("method", models.CharField(max_length=32)),
                ("round", models.PositiveIntegerField(default=1)),
                ("requests", models.JSONField(default=dict)),
                ("request_state", models.TextField(null=True)),
                ("responses", bonobot.lib.sealed.SealedJSONField(blank=True, default=dict)),
                ("answered", models.JSONField(default=list)),
                ("task_id", models.CharField(blank=True, default="", max_length=255)),
                ("poll_ms", models.PositiveIntegerField(default=0)),
                ("next_at", models.DateTimeField(null=True)),
                ("ends_at", models.DateTimeField()),
                ("closed_at", models.DateTimeField(null=True)),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="exchanges",
                        to="agents.session",
                    ),
                ),
            ],
            options={
                "verbose_name": "call in several parts",
                "verbose_name_plural": "calls in several parts",
                "ordering": ("created_at",),
            },
        ),
        migrations.CreateModel(
            name="Inbox",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("message", "message"), ("cancel", "cancel")], max_length=10
                    ),
                ),
                ("payload", models.JSONField(default=dict)),
                ("actor_kind", models.CharField(max_length=10)),
                ("actor_id", models.CharField(max_length=255)),
                ("actor", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("taken_at", models.DateTimeField(null=True)),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="inbox",
                        to="agents.session",
                    ),
                ),
            ],
            options={
                "verbose_name": "inbox item",
                "verbose_name_plural": "inbox",
                "ordering": ("pk",),
                "indexes": [models.Index(fields=["session", "taken_at"], name="inbox_by_session")],
            },
        ),
        migrations.CreateModel(
            name="SessionGrant",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("server_id", models.UUIDField(null=True)),
                ("own_name", models.CharField(max_length=512, verbose_name="tool")),
                ("label", models.CharField(max_length=512, verbose_name="shown as")),
                ("definition_digest", models.CharField(blank=True, default="", max_length=64)),
                ("rules_digest", models.CharField(max_length=64)),
                ("granted_by", models.CharField(max_length=255, verbose_name="granted by")),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="agents.session",
                    ),
                ),
            ],
            options={
                "verbose_name": "grant for a session",
                "verbose_name_plural": "grants for sessions",
                "ordering": ("-created_at",),
            },
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("seq", models.PositiveIntegerField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("message", "message"),
                            ("model", "model turn"),
                            ("call", "call"),
                            ("notice", "notice"),
                            ("end", "end"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("intent", "begun"),
                            ("done", "done"),
                            ("failed", "failed"),
                            ("unknown", "unknown"),
                        ],
                        default="intent",
                        max_length=10,
                    ),
                ),
                ("turn", models.PositiveIntegerField(default=0)),
                ("index", models.PositiveIntegerField(default=0)),
                ("call_id", models.UUIDField(db_index=True, null=True)),
                ("payload", models.JSONField(default=dict)),
                ("fence", models.PositiveBigIntegerField(default=0)),
                ("started_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="agents.session",
                    ),
                ),
            ],
            options={
                "verbose_name": "step",
                "verbose_name_plural": "steps",
                "ordering": ("session", "seq"),
                "constraints": [
                    models.UniqueConstraint(fields=("session", "seq"), name="step_seq"),
                    models.UniqueConstraint(
                        condition=models.Q(("kind", "call")),
                        fields=("session", "turn", "index"),
                        name="step_call_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ToolRule",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "effect",
                    models.CharField(
                        choices=[("allow", "allow"), ("ask", "ask a person"), ("deny", "deny")],
                        max_length=5,
                        verbose_name="effect",
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        choices=[("mcp", "MCP server"), ("builtin", "built-in")],
                        default="mcp",
                        max_length=8,
                        verbose_name="source",
                    ),
                ),
                ("pattern", models.CharField(max_length=512, verbose_name="tool name or glob")),
                (
                    "condition",
                    models.JSONField(blank=True, null=True, verbose_name="when the arguments fit"),
                ),
                (
                    "condition_digest",
                    models.CharField(blank=True, default="", editable=False, max_length=64),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "policy",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rules",
                        to="agents.toolpolicy",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "tool rule",
                "verbose_name_plural": "tool rules",
                "ordering": ("effect", "source", "pattern"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "policy",
                            "effect",
                            "source",
                            "server",
                            "pattern",
                            "condition_digest",
                        ),
                        name="rule_once_per_policy",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Given",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="given",
                        to="agents.agent",
                    ),
                ),
                (
                    "callee",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="given_to",
                        to="agents.agent",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "skill",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="given",
                        to="agents.skill",
                    ),
                ),
                (
                    "workflow",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="given",
                        to="agents.workflow",
                    ),
                ),
            ],
            options={
                "verbose_name": "given to an agent",
                "verbose_name_plural": "given to agents",
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("skill__isnull", False)),
                        fields=("agent", "skill"),
                        name="skill_given_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("callee__isnull", False)),
                        fields=("agent", "callee"),
                        name="callee_given_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("workflow__isnull", False)),
                        fields=("agent", "workflow"),
                        name="workflow_given_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("callee__isnull", True),
                                ("skill__isnull", False),
                                ("workflow__isnull", True),
                            ),
                            models.Q(
                                ("callee__isnull", False),
                                ("skill__isnull", True),
                                ("workflow__isnull", True),
                            ),
                            models.Q(
                                ("callee__isnull", True),
                                ("skill__isnull", True),
                                ("workflow__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="given_one_thing",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Trigger",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("name", models.SlugField(max_length=64, verbose_name="name")),
                (
                    "kind",
                    models.CharField(
                        choices=[("schedule", "schedule"), ("webhook", "webhook")],
                        max_length=10,
                        verbose_name="kind",
                    ),
                ),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("inputs", models.JSONField(blank=True, default=dict, verbose_name="inputs")),
                (
                    "every_s",
                    models.PositiveIntegerField(
                        blank=True, null=True, verbose_name="every (seconds)"
                    ),
                ),
                (
                    "cron",
                    models.CharField(
                        blank=True, default="", max_length=100, verbose_name="cron expression"
                    ),
                ),
                (
                    "time_zone",
                    models.CharField(default="UTC", max_length=64, verbose_name="time zone"),
                ),
                ("next_at", models.DateTimeField(null=True, verbose_name="next run")),
                ("secret", bonobot.lib.sealed.SealedTextField(blank=True, default="")),
                (
                    "per_minute",
                    models.PositiveIntegerField(default=10, verbose_name="runs a minute"),
                ),
                ("last_at", models.DateTimeField(null=True, verbose_name="last run")),
                ("last_code", models.CharField(blank=True, default="", max_length=64)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "workflow",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="triggers",
                        to="agents.workflow",
                    ),
                ),
            ],
            options={
                "verbose_name": "trigger",
                "verbose_name_plural": "triggers",
                "ordering": ("name",),
                "indexes": [models.Index(fields=["enabled", "next_at"], name="trigger_due")],
                "constraints": [
                    models.UniqueConstraint(fields=("workflow", "name"), name="trigger_name"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("cron", ""), ("every_s", None), ("kind", "webhook")),
                            models.Q(
                                ("every_s", None),
                                ("kind", "schedule"),
                                models.Q(("cron", ""), _negated=True),
                            ),
                            models.Q(
                                ("cron", ""), ("every_s__isnull", False), ("kind", "schedule")
                            ),
                            _connector="OR",
                        ),
                        name="trigger_has_one_time",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkflowVersion",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("number", models.PositiveIntegerField()),
                ("digest", models.CharField(max_length=64)),
                ("source", models.TextField()),
                ("made_by", models.CharField(max_length=255)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "workflow",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="agents.workflow",
                    ),
                ),
            ],
            options={
                "verbose_name": "version of a workflow",
                "verbose_name_plural": "versions of workflows",
                "ordering": ("-number",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("workflow", "number"), name="workflow_version_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Promise",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("request", bonobot.lib.sealed.SealedJSONField(default=dict)),
                ("answer", bonobot.lib.sealed.SealedJSONField(blank=True, default=dict)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waits for a person"),
                            ("ready", "is about to be made"),
                            ("running", "is being made"),
                            ("asking", "its server asks for something"),
                            ("remote", "its server works on a task"),
                            ("done", "is over"),
                            ("cancelled", "was taken back"),
                        ],
                        default="waiting",
                        max_length=9,
                    ),
                ),
                ("visited", models.BooleanField(default=False)),
                ("fence", models.PositiveIntegerField(default=0)),
                ("call_id", models.UUIDField(null=True)),
                ("beaten_at", models.DateTimeField(null=True)),
                ("ends_at", models.DateTimeField()),
                (
                    "approval",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="agents.approval",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "promised call",
                "verbose_name_plural": "promised calls",
                "ordering": ("created_at",),
                "indexes": [models.Index(fields=["ends_at"], name="promise_by_end")],
            },
        ),
        migrations.CreateModel(
            name="Question",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("round", models.PositiveIntegerField(default=1)),
                ("key", models.CharField(blank=True, default="", max_length=255)),
                ("call_id", models.UUIDField(null=True)),
                ("server_id", models.UUIDField()),
                ("server_name", models.CharField(max_length=255, verbose_name="server")),
                (
                    "own_name",
                    models.CharField(blank=True, default="", max_length=2048, verbose_name="tool"),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[("form", "by a form"), ("url", "on a web page")],
                        max_length=4,
                        verbose_name="how",
                    ),
                ),
                ("message", models.TextField(verbose_name="question")),
                ("schema", bonobot.lib.ordered_json.OrderedJSONField(default=dict)),
                ("url", models.TextField(blank=True, default="", verbose_name="web page")),
                ("elicitation_id", models.CharField(blank=True, default="", max_length=255)),
                ("flags", models.JSONField(default=list, verbose_name="warnings")),
                ("requested_by_kind", models.CharField(max_length=10)),
                ("requested_by_id", models.CharField(max_length=255)),
                ("requested_by", models.CharField(max_length=255, verbose_name="asked of")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waits for a person"),
                            ("accept", "answered"),
                            ("decline", "declined"),
                            ("cancel", "dismissed"),
                            ("expired", "expired"),
                            ("withdrawn", "withdrawn"),
                        ],
                        default="waiting",
                        max_length=9,
                        verbose_name="state",
                    ),
                ),
                ("content", bonobot.lib.sealed.SealedJSONField(blank=True, default=dict)),
                ("expires_at", models.DateTimeField(verbose_name="expires")),
                ("answered_at", models.DateTimeField(null=True, verbose_name="answered")),
                (
                    "answered_by",
                    models.CharField(
                        blank=True, default="", max_length=255, verbose_name="answered by"
                    ),
                ),
                ("completed_at", models.DateTimeField(null=True, verbose_name="done there")),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="questions",
                        to="agents.agent",
                    ),
                ),
                (
                    "exchange",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="questions",
                        to="agents.exchange",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "session",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="questions",
                        to="agents.session",
                    ),
                ),
            ],
            options={
                "verbose_name": "question of a server",
                "verbose_name_plural": "questions of servers",
                "ordering": ("-created_at",),
                "indexes": [
                    models.Index(
                        fields=["organization", "state", "-created_at"], name="question_inbox"
                    ),
                    models.Index(fields=["state", "expires_at"], name="question_by_expiry"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("exchange__isnull", False)),
                        fields=("exchange", "round", "key"),
                        name="question_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkflowRun",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("name", models.CharField(max_length=64, verbose_name="workflow")),
                ("version", models.PositiveIntegerField(verbose_name="version")),
                ("definition", models.JSONField()),
                ("inputs", models.JSONField(default=dict, verbose_name="inputs")),
                ("outputs", models.JSONField(null=True, verbose_name="outputs")),
                (
                    "via",
                    models.CharField(
                        choices=[
                            ("person", "a person or program"),
                            ("schedule", "a schedule"),
                            ("webhook", "a webhook"),
                            ("agent", "an agent"),
                        ],
                        default="person",
                        max_length=10,
                        verbose_name="started by",
                    ),
                ),
                ("delivery", models.CharField(blank=True, default="", max_length=255)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "session",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="workflow_run",
                        to="agents.session",
                    ),
                ),
                (
                    "trigger",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="runs",
                        to="agents.trigger",
                    ),
                ),
                (
                    "workflow",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="runs",
                        to="agents.workflow",
                    ),
                ),
            ],
            options={
                "verbose_name": "run of a workflow",
                "verbose_name_plural": "runs of workflows",
                "ordering": ("-created_at",),
                "indexes": [
                    models.Index(fields=["workflow", "-created_at"], name="run_by_workflow"),
                    models.Index(fields=["trigger", "-created_at"], name="run_by_trigger"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("delivery", ""), _negated=True),
                        fields=("trigger", "delivery"),
                        name="delivery_once",
                    )
                ],
            },
        ),
    ]
