import bonobot.lib.sealed
import bonobot.tenancy.roles
import django.contrib.auth.models
import django.contrib.auth.validators
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [
        ("tenancy", "0001_initial"),
        ("tenancy", "0002_halting"),
        ("tenancy", "0003_approval_hours"),
        ("tenancy", "0004_organization_rates"),
        ("tenancy", "0005_token_terms"),
        ("tenancy", "0006_issuers"),
        ("tenancy", "0007_first_run"),
    ]

    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        migrations.CreateModel(
            name="Organization",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("slug", models.SlugField(max_length=64, unique=True, verbose_name="slug")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                (
                    "halted_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="halted"),
                ),
                (
                    "four_eyes",
                    models.BooleanField(
                        default=False,
                        help_text="Whoever asked for a call, or started its session, can't approve it.",
                        verbose_name="nobody approves their own calls",
                    ),
                ),
                (
                    "approval_hours",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="From 1 to 720; then it is refused. Empty: as the platform has it.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(720),
                        ],
                        verbose_name="hours to answer a call that waits",
                    ),
                ),
                (
                    "calls_per_minute",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Of all agents and tokens together; 0: no limit, empty: as the settings say.",
                        null=True,
                        verbose_name="calls a minute",
                    ),
                ),
            ],
            options={
                "verbose_name": "organization",
                "verbose_name_plural": "organizations",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="User",
            fields=[
                ("password", models.CharField(max_length=128, verbose_name="password")),
                (
                    "last_login",
                    models.DateTimeField(blank=True, null=True, verbose_name="last login"),
                ),
                (
                    "is_superuser",
                    models.BooleanField(
                        default=False,
                        help_text="Designates that this user has all permissions without explicitly assigning them.",
                        verbose_name="superuser status",
                    ),
                ),
                (
                    "username",
                    models.CharField(
                        error_messages={"unique": "A user with that username already exists."},
                        help_text="Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.",
                        max_length=150,
                        unique=True,
                        validators=[django.contrib.auth.validators.UnicodeUsernameValidator()],
                        verbose_name="username",
                    ),
                ),
                (
                    "first_name",
                    models.CharField(blank=True, max_length=150, verbose_name="first name"),
                ),
                (
                    "last_name",
                    models.CharField(blank=True, max_length=150, verbose_name="last name"),
                ),
                (
                    "email",
                    models.EmailField(blank=True, max_length=254, verbose_name="email address"),
                ),
                (
                    "is_staff",
                    models.BooleanField(
                        default=False,
                        help_text="Designates whether the user can log into this admin site.",
                        verbose_name="staff status",
                    ),
                ),
                (
                    "is_active",
                    models.BooleanField(
                        default=True,
                        help_text="Designates whether this user should be treated as active. Unselect this instead of deleting accounts.",
                        verbose_name="active",
                    ),
                ),
                (
                    "date_joined",
                    models.DateTimeField(
                        default=django.utils.timezone.now, verbose_name="date joined"
                    ),
                ),
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "groups",
                    models.ManyToManyField(
                        blank=True,
                        help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.group",
                        verbose_name="groups",
                    ),
                ),
                (
                    "user_permissions",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Specific permissions for this user.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.permission",
                        verbose_name="user permissions",
                    ),
                ),
            ],
            options={
                "verbose_name": "user",
                "verbose_name_plural": "users",
                "abstract": False,
            },
            managers=[
                ("objects", django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name="FirstRun",
            fields=[
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="first_run",
                        serialize=False,
                        to="tenancy.organization",
                    ),
                ),
                ("skipped", models.JSONField(default=list)),
                ("closed_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Issuer",
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
                (
                    "url",
                    models.CharField(
                        help_text="Letter by letter as its tokens have it in iss.",
                        max_length=512,
                        unique=True,
                        verbose_name="issuer",
                    ),
                ),
                (
                    "audience",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="What aud must contain; empty: the very address that a token is used at.",
                        max_length=512,
                        verbose_name="audience",
                    ),
                ),
                (
                    "subject_claim",
                    models.CharField(
                        default="sub", max_length=255, verbose_name="claim of the subject"
                    ),
                ),
                (
                    "label_claim",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="What the audit shows, like email; empty: the subject.",
                        max_length=255,
                        verbose_name="claim of the name",
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("owner", "owner"),
                            ("operator", "operator"),
                            ("reviewer", "reviewer"),
                            ("auditor", "auditor"),
                            ("member", "member"),
                        ],
                        default=bonobot.tenancy.roles.Role["MEMBER"],
                        help_text="Of whoever no claim gives one; empty: they are not let in.",
                        max_length=16,
                        verbose_name="role",
                    ),
                ),
                (
                    "role_claim",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Its values are looked up below; a member is reached by a dot.",
                        max_length=255,
                        verbose_name="claim of the role",
                    ),
                ),
                (
                    "roles",
                    models.JSONField(blank=True, default=dict, verbose_name="roles by value"),
                ),
                (
                    "scope_claim",
                    models.CharField(
                        blank=True,
                        default="scope",
                        help_text="Empty: each token has all the scopes that are allowed here.",
                        max_length=255,
                        verbose_name="claim of the scopes",
                    ),
                ),
                ("scopes", models.JSONField(blank=True, default=list, verbose_name="scopes")),
                (
                    "agent_ids",
                    models.JSONField(blank=True, default=list, verbose_name="only for agents"),
                ),
                (
                    "calls_per_minute",
                    models.PositiveIntegerField(
                        blank=True, null=True, verbose_name="calls a minute"
                    ),
                ),
                (
                    "any_type",
                    models.BooleanField(
                        default=False,
                        help_text="For issuers that do not mark access tokens as such (at+jwt).",
                        verbose_name="takes tokens of the type JWT",
                    ),
                ),
                (
                    "allow_private",
                    models.BooleanField(
                        default=False,
                        help_text="Then http is allowed, too.",
                        verbose_name="may be at a private address",
                    ),
                ),
                (
                    "announced",
                    models.BooleanField(
                        default=True,
                        help_text="Whether the metadata of our addresses names it, to anybody who asks.",
                        verbose_name="told to clients",
                    ),
                ),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
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
                "verbose_name": "issuer of tokens",
                "verbose_name_plural": "issuers of tokens",
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("role__in", ["", "owner", "operator", "reviewer", "auditor", "member"])
                        ),
                        name="issuer_role",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("principal", models.CharField(max_length=300)),
                ("key", models.CharField(max_length=255)),
                ("request_digest", models.CharField(max_length=64)),
                ("status", models.PositiveSmallIntegerField(null=True)),
                ("body", bonobot.lib.sealed.SealedTextField(blank=True, default="")),
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
                "verbose_name": "kept answer",
                "verbose_name_plural": "kept answers",
                "indexes": [
                    models.Index(fields=["organization", "created_at"], name="answer_by_age")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "principal", "key"), name="answer_once_per_key"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Token",
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
                (
                    "key",
                    models.CharField(
                        editable=False, max_length=16, unique=True, verbose_name="key"
                    ),
                ),
                ("pepper_id", models.PositiveSmallIntegerField(editable=False)),
                ("digest", models.CharField(editable=False, max_length=64)),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("owner", "owner"),
                            ("operator", "operator"),
                            ("reviewer", "reviewer"),
                            ("auditor", "auditor"),
                            ("member", "member"),
                        ],
                        default=bonobot.tenancy.roles.Role["MEMBER"],
                        max_length=16,
                        verbose_name="role",
                    ),
                ),
                ("scopes", models.JSONField(blank=True, default=list, verbose_name="scopes")),
                (
                    "agent_ids",
                    models.JSONField(blank=True, default=list, verbose_name="only for agents"),
                ),
                (
                    "networks",
                    models.JSONField(blank=True, default=list, verbose_name="only from networks"),
                ),
                (
                    "client",
                    models.CharField(
                        blank=True, default="", max_length=64, verbose_name="for program"
                    ),
                ),
                (
                    "calls_per_minute",
                    models.PositiveIntegerField(
                        blank=True, null=True, verbose_name="calls a minute"
                    ),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True, verbose_name="expires")),
                (
                    "last_used_at",
                    models.DateTimeField(
                        blank=True, editable=False, null=True, verbose_name="last used"
                    ),
                ),
                (
                    "revoked_at",
                    models.DateTimeField(
                        blank=True, editable=False, null=True, verbose_name="revoked"
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
                "verbose_name": "token",
                "verbose_name_plural": "tokens",
                "ordering": ("-created_at",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("role__in", ["owner", "operator", "reviewer", "auditor", "member"])
                        ),
                        name="token_role",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Membership",
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
                    "role",
                    models.CharField(
                        choices=[
                            ("owner", "owner"),
                            ("operator", "operator"),
                            ("reviewer", "reviewer"),
                            ("auditor", "auditor"),
                            ("member", "member"),
                        ],
                        default=bonobot.tenancy.roles.Role["MEMBER"],
                        max_length=16,
                        verbose_name="role",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "membership",
                "verbose_name_plural": "memberships",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "user"), name="membership_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("role__in", ["owner", "operator", "reviewer", "auditor", "member"])
                        ),
                        name="membership_role",
                    ),
                ],
            },
        ),
    ]
