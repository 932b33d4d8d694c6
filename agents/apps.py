"""Django app configuration of agents."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class AgentsConfig(AppConfig):
    """Agents with their tools, policies, sessions and approvals."""

    name = "agents"
    verbose_name = _("Agents")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the hooks of lower packages: directories, gauges, tools and panels."""
        from agents.agent_directory import ModelAgentDirectory, ModelAttachedAgents
        from agents.builtin_tools.extension_points import register_tool_source
        from agents.sessions.extension_points import workflow_executor
        from bonobot.accounts.account_emails import EmailKind, register_email_kind
        from bonobot.accounts.extension_points import (
            agent_directory,
            join_hooks,
            token_snippets,
        )
        from bonobot.core.extension_points import LazyFunction
        from bonobot.ledger.extension_points import pending_call_source
        from bonobot.monitoring.extension_points import readiness_parts, row_gauges
        from bonobot.oauth_server.protected_resources import (
            ProtectedResources,
            protected_resources,
        )
        from mcp_servers.extension_points import attached_agents, review_hooks, server_panels

        self._register_restorable_kinds()
        self._register_label_hooks()
        agent_directory.register(ModelAgentDirectory())
        attached_agents.register(ModelAttachedAgents())
        register_email_kind(
            "access_request_answered",
            EmailKind(LazyFunction("agents.access_requests.build_answer_email")),
        )
        join_hooks.register(LazyFunction("agents.services.grant_invited_agents"))
        protected_resources.register(
            ProtectedResources(
                parse=LazyFunction("agents.gateway.routes.parse_path"),
                find=LazyFunction("agents.gateway.routes.find_target"),
            )
        )
        pending_call_source.register(
            LazyFunction("agents.approvals.pending_calls.load_pending_calls")
        )
        readiness_parts.register(LazyFunction("agents.monitoring_gauges.probe_workers"))
        row_gauges.register(LazyFunction("agents.monitoring_gauges.build_row_gauges"))
        review_hooks.register(LazyFunction("agents.approvals.services.request_approvals_again"))
        server_panels.register(LazyFunction("agents.admin.attached_agents.build_agents_panel"))
        token_snippets.register(
            LazyFunction("agents.admin.client_config_snippets.build_token_snippets")
        )
        register_tool_source("agent", LazyFunction("agents.sessions.ask_agent_tool.build_ask_tool"))
        register_tool_source(
            "workflow", LazyFunction("agents.workflows.workflow_tool.build_workflow_tool")
        )
        workflow_executor.register(LazyFunction("agents.workflows.runs.execute_workflow"))

    def _register_label_hooks(self) -> None:
        from bonobot.accounts.extension_points import read_hooks, response_hooks
        from bonobot.core.extension_points import LazyFunction
        from bonobot.ledger.audit.admin_changes import token_change_hooks

        read_hooks.register(LazyFunction("agents.flow_labels.text_labels.label_row_reader"))
        response_hooks.register(
            LazyFunction("agents.flow_labels.error_labels.label_response_reader")
        )
        token_change_hooks.register(
            LazyFunction("agents.flow_labels.text_labels.label_changed_object")
        )

    def _register_restorable_kinds(self) -> None:
        from bonobot.accounts.deletions import RestorableKind, restorable_kinds
        from bonobot.accounts.roles import Action
        from bonobot.core.extension_points import LazyFunction
        from mcp_servers.apps import OBSERVED_MODELS

        restorable_kinds.register(
            RestorableKind(
                name="agent",
                label=_("Agent"),
                model="agents.agent",
                required_action=Action.MANAGE_AGENTS,
                action="agent_restored",
                ignored_models=OBSERVED_MODELS,
                after_restore=LazyFunction("agents.services.cancel_restored_sessions"),
                finish=LazyFunction("agents.services.delete_workspace"),
            )
        )
        restorable_kinds.register(
            RestorableKind(
                name="agent_server",
                label=_("Attached server"),
                model="agents.agentserver",
                required_action=Action.MANAGE_AGENTS,
                action="attached_server_restored",
                build_path=LazyFunction("agents.admin.agent_tools.build_attachment_path"),
            )
        )
        restorable_kinds.register(
            RestorableKind(
                name="skill",
                label=_("Skill"),
                model="agents.skill",
                required_action=Action.MANAGE_WORKFLOWS,
                action="skill_restored",
            )
        )
        restorable_kinds.register(
            RestorableKind(
                name="workflow",
                label=_("Workflow"),
                model="agents.workflow",
                required_action=Action.MANAGE_WORKFLOWS,
                action="workflow_restored",
            )
        )
