"""REST of workflows, their versions and runs."""

from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentSlugs
from agents.api.sessions import SessionSerializer
from agents.flow_labels.session_labels import label_reader
from agents.models import Workflow, WorkflowRun, WorkflowVersion
from agents.models.workflows import MAX_SOURCE_LENGTH
from agents.sessions.services import cancel_session
from agents.workflows.runs import list_steps, run_workflow
from agents.workflows.services import (
    WorkflowSpec,
    approve_workflow,
    delete_workflow,
    get_workflow,
    save_workflow,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, READ_OR_RUN, ResourceView, set_not_found_field
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictBooleanFilter, StrictFilterSet
from bonobot.core.api.serializers import NumberedBody, StrictSerializer, VersionedSerializer
from mcp_servers.api.serializers import JSON_OBJECT


@extend_schema_field({**JSON_OBJECT, "description": "As defined by the workflow's input schema."})
class WorkflowInputsField(serializers.DictField):
    """Inputs of a run."""


@extend_schema_field(
    {**JSON_OBJECT, "nullable": True, "description": "Null until the run has ended."}
)
class WorkflowOutputsField(serializers.DictField):
    """Outputs of a run."""


class WorkflowFilter(StrictFilterSet):
    """Filters for the list of workflows."""

    name = django_filters.CharFilter()
    enabled = StrictBooleanFilter()
    agent = django_filters.CharFilter(
        field_name="agent__slug", label="Slug of the agent that runs it"
    )


class WorkflowRunFilter(StrictFilterSet):
    """Filters for the list of runs."""

    status = django_filters.CharFilter(field_name="session__status")
    via = django_filters.ChoiceFilter(choices=WorkflowRun.Via.choices)


class WorkflowBody(NumberedBody):
    """A workflow to create or update; omitted fields are unchanged."""

    name = serializers.SlugField(max_length=64)
    source = serializers.CharField(  # type: ignore[assignment]  # DRF moves it
        required=False,
        max_length=MAX_SOURCE_LENGTH,
        trim_whitespace=False,
        help_text="The definition, as YAML or JSON.",
    )
    enabled = serializers.BooleanField(required=False)
    agents = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        help_text="Slugs of the agents that have the workflow as a tool.",
    )


class WorkflowSerializer(VersionedSerializer):
    """A workflow."""

    body_classes = (WorkflowBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    description = serializers.CharField()
    agent = serializers.CharField(source="agent.slug", help_text="The agent that runs it.")
    source = serializers.CharField()  # type: ignore[assignment]  # as above
    enabled = serializers.BooleanField()
    version = serializers.IntegerField()  # type: ignore[assignment]  # it numbers what it says
    digest = serializers.CharField(help_text="SHA-256 digest of the whole definition.")
    state = serializers.ChoiceField(
        ["approved", "pending", "changed"],
        help_text="Review state of the workflow as a tool of other agents.",
    )
    agents = AgentSlugs()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class WorkflowVersionSerializer(StrictSerializer):
    """One version of a workflow."""

    number = serializers.IntegerField()
    digest = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # as above
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()


class ApproveWorkflowBody(StrictSerializer):
    """The version to approve."""

    digest = serializers.CharField(
        max_length=64, help_text="Digest of the version that was reviewed."
    )


class RunWorkflowBody(StrictSerializer):
    """The inputs of a run."""

    inputs = WorkflowInputsField(required=False)


class WorkflowStepSerializer(StrictSerializer):
    """A step of a run."""

    id = serializers.CharField()
    state = serializers.ChoiceField(
        ["waiting", "running", "done", "failed", "unknown", "skipped"],
        help_text="`waiting`: the step hasn't started.",
    )
    tool = serializers.CharField(help_text="The tool that it calls; empty until it starts.")
    text = serializers.CharField(help_text="The result of the step.")
    code = serializers.CharField()
    call_id = serializers.UUIDField(allow_null=True)
    duration_ms = serializers.IntegerField(allow_null=True)


class WorkflowRunSerializer(StrictSerializer):
    """A run of a workflow; its session has all calls."""

    id = serializers.UUIDField()
    workflow = serializers.CharField(source="name")
    version = serializers.IntegerField()
    via = serializers.ChoiceField(WorkflowRun.Via.choices)
    inputs = WorkflowInputsField()
    outputs = WorkflowOutputsField(allow_null=True)
    session = SessionSerializer()
    created_at = serializers.DateTimeField()


class WorkflowRunDetailSerializer(WorkflowRunSerializer):
    """A run with its steps."""

    steps = serializers.SerializerMethodField()

    @extend_schema_field(WorkflowStepSerializer(many=True))
    def get_steps(self, run: WorkflowRun) -> Any:
        """Return its steps, in their order."""
        return WorkflowStepSerializer(list_steps(run), many=True).data


class WorkflowView(ResourceView):
    """Base class of the views of one workflow."""

    def get_workflow(self, workflow_id: str) -> Workflow:
        """Return the visible workflow with this id or name; raises `NotFound`."""
        with set_not_found_field("workflow_id"):
            return get_workflow(self.principal, workflow_id)

    def get_run(self, run_id: str) -> WorkflowRun:
        """Return the visible run with this id; raises `NotFound`."""
        runs = WorkflowRun.objects.visible_to(self.principal).select_related("session__agent")
        run = self.get_row(WorkflowRun, runs, run_id=run_id)
        if self.request.method == "GET":
            label_reader(self.principal, run.session)
        return run


class WorkflowListView(ResourceView):
    """All workflows."""

    rules = {"GET": READ_OR_RUN, "POST": Action.MANAGE_WORKFLOWS}
    agent_token_methods = ("GET",)
    queryset = Workflow.objects.none()
    filterset_class = WorkflowFilter
    ordering = ("name", "pk")
    orderings = ("name", "created_at", "updated_at")

    @describe_operation("list_workflows", answer=WorkflowSerializer(many=True))
    def get(self, request: object) -> Response:
        """List workflows; a member or a token for one agent sees those of their agents."""
        workflows = Workflow.objects.visible_to(self.principal).select_related("agent")
        return self.respond_page(
            workflows.prefetch_related("assignments__agent"), WorkflowSerializer
        )

    @describe_operation("create_workflow", body=WorkflowBody, answer=WorkflowSerializer, status=201)
    def post(self, request: object) -> Response:
        """Create a workflow; errors in its definition have a path."""
        workflow = save_workflow(self.principal, WorkflowSpec(**self.read_body(WorkflowBody)))
        return self.respond_row(workflow, WorkflowSerializer, status=201)


class WorkflowDetailView(WorkflowView):
    """One workflow."""

    rules = {
        "GET": READ_OR_RUN,
        "PATCH": Action.MANAGE_WORKFLOWS,
        "DELETE": Action.MANAGE_WORKFLOWS,
    }
    agent_token_methods = ("GET",)

    @describe_operation("get_workflow", answer=WorkflowSerializer)
    def get(self, request: object, workflow_id: str) -> Response:
        """Get a workflow, by ID or name."""
        return self.respond_row(self.get_workflow(workflow_id), WorkflowSerializer)

    @describe_operation("update_workflow", body=WorkflowBody, answer=WorkflowSerializer)
    def patch(self, request: object, workflow_id: str) -> Response:
        """Update a workflow; current runs continue with the version they started with."""
        workflow = self.get_workflow(workflow_id)
        values = {"name": workflow.name} | self.read_body(WorkflowBody, partial=True)
        updated = save_workflow(self.principal, WorkflowSpec(**values), workflow)
        return self.respond_row(updated, WorkflowSerializer)

    @describe_operation("delete_workflow", status=204)
    def delete(self, request: object, workflow_id: str) -> Response:
        """Delete a workflow with its versions and triggers; its runs are kept."""
        delete_workflow(self.principal, self.get_workflow(workflow_id))
        return Response(status=204)


class WorkflowVersionListView(WorkflowView):
    """The versions of a workflow."""

    rules = {"GET": READ}
    queryset = WorkflowVersion.objects.none()
    ordering = ("-number", "-pk")
    orderings = ("number", "created_at")

    @describe_operation("list_workflow_versions", answer=WorkflowVersionSerializer(many=True))
    def get(self, request: object, workflow_id: str) -> Response:
        """List the versions of a workflow, newest first."""
        return self.respond_page(
            self.get_workflow(workflow_id).versions.all(), WorkflowVersionSerializer
        )


class ApproveWorkflowView(WorkflowView):
    """Approval of a workflow as a tool."""

    rules = {"POST": Action.APPROVE_DEFINITIONS}

    @describe_operation("approve_workflow", body=ApproveWorkflowBody, answer=WorkflowSerializer)
    def post(self, request: object, workflow_id: str) -> Response:
        """Approve the reviewed version of a workflow as a tool of other agents."""
        workflow, digest = (
            self.get_workflow(workflow_id),
            self.read_body(ApproveWorkflowBody)["digest"],
        )
        return self.respond_row(
            approve_workflow(self.principal, workflow, digest), WorkflowSerializer
        )


class WorkflowRunListView(WorkflowView):
    """The runs of a workflow."""

    rules = {"GET": READ_OR_RUN, "POST": Action.RUN_AGENTS}
    agent_token_methods = ("GET", "POST")
    queryset = WorkflowRun.objects.none()
    filterset_class = WorkflowRunFilter
    orderings = ("created_at",)

    @describe_operation("list_workflow_runs", answer=WorkflowRunSerializer(many=True))
    def get(self, request: object, workflow_id: str) -> Response:
        """List the runs of a workflow, newest first."""
        workflow = self.get_workflow(workflow_id)
        runs = WorkflowRun.objects.visible_to(self.principal).filter(workflow=workflow)
        answer = self.respond_page(runs.select_related("session__agent"), WorkflowRunSerializer)
        page: Any = self.paginator
        label_reader(self.principal, *(run.session for run in page.page))
        return answer

    @describe_operation(
        "run_workflow", body=RunWorkflowBody, answer=WorkflowRunDetailSerializer, status=201
    )
    def post(self, request: object, workflow_id: str) -> Response:
        """Run a workflow; its inputs are validated first."""
        workflow, body = self.get_workflow(workflow_id), self.read_body(RunWorkflowBody)
        run = run_workflow(self.principal, workflow, body.get("inputs", {}))
        return self.respond_row(run, WorkflowRunDetailSerializer, status=201)


class WorkflowRunDetailView(WorkflowView):
    """One run."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)

    @describe_operation("get_workflow_run", answer=WorkflowRunDetailSerializer)
    def get(self, request: object, run_id: str) -> Response:
        """Get a workflow run with its steps."""
        return self.respond_row(self.get_run(run_id), WorkflowRunDetailSerializer)


class CancelWorkflowRunView(WorkflowView):
    """Cancellation of a run."""

    rules = {"POST": Action.RUN_AGENTS}
    agent_token_methods = ("POST",)

    @describe_operation("cancel_workflow_run", answer=WorkflowRunDetailSerializer)
    def post(self, request: object, run_id: str) -> Response:
        """Cancel a workflow run and the sessions it started; an ended run is unchanged."""
        cancel_session(self.principal, self.get_run(run_id).session)
        return self.respond_row(self.get_run(run_id), WorkflowRunDetailSerializer)
