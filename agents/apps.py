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
        from agents.sessions.extension_points import register_workflow_executor
        from bonobot.accounts.account_emails import EmailKind, register_email_kind
        from bonobot.accounts.extension_points import (
            register_agent_directory,
            register_join_hook,
            register_token_snippets,
        )
        from bonobot.core.extension_points import LazyFunction
        from bonobot.monitoring.extension_points import register_readiness_part, register_row_gauges
        from bonobot.oauth_server.protected_resources import (
            ProtectedResources,
            register_protected_resources,
        )
        from mcp_servers.extension_points import register_attached_agents, register_server_panel

        self._register_restorable_kinds()
        self._register_label_hooks()
        register_agent_directory(ModelAgentDirectory())
        register_attached_agents(ModelAttachedAgents())
        register_email_kind(
            "access_request_answered",
            EmailKind(LazyFunction("agents.access_requests.build_answer_email")),
        )
        register_join_hook(LazyFunction("agents.services.grant_invited_agents"))
        register_protected_resources(
            ProtectedResources(
                parse=LazyFunction("agents.gateway.routes.parse_path"),
                find=LazyFunction("agents.gateway.routes.find_target"),
            )
        )
        register_readiness_part(LazyFunction("agents.monitoring_gauges.probe_workers"))
        register_row_gauges(LazyFunction("agents.monitoring_gauges.build_row_gauges"))
        register_server_panel(LazyFunction("agents.admin.agents.build_agents_panel"))
        register_token_snippets(
            LazyFunction("agents.admin.client_config_snippets.build_token_snippets")
        )
        register_tool_source("agent", LazyFunction("agents.sessions.ask_agent_tool.build_ask_tool"))
        register_tool_source(
            "workflow", LazyFunction("agents.workflows.workflow_tool.build_workflow_tool")
        )
        register_workflow_executor(LazyFunction("agents.workflows.runs.execute_workflow"))

    def _register_label_hooks(self) -> None:
        from bonobot.accounts.extension_points import register_read_hook, register_response_hook
        from bonobot.core.extension_points import LazyFunction
        from bonobot.ledger.audit.admin_changes import register_token_change_hook

        register_read_hook(LazyFunction("agents.flow_labels.text_labels.label_row_reader"))
        register_response_hook(
            LazyFunction("agents.flow_labels.error_labels.label_response_reader")
        )
        register_token_change_hook(
            LazyFunction("agents.flow_labels.text_labels.label_changed_object")
        )

    def _register_restorable_kinds(self) -> None:
        from bonobot.accounts.deletions import RestorableKind, register_restorable_kind
        from bonobot.accounts.roles import Action
        from bonobot.core.extension_points import LazyFunction
        from mcp_servers.apps import OBSERVED_MODELS

        register_restorable_kind(
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
        register_restorable_kind(
            RestorableKind(
                name="skill",
                label=_("Skill"),
                model="agents.skill",
                required_action=Action.MANAGE_WORKFLOWS,
                action="skill_restored",
            )
        )
        register_restorable_kind(
            RestorableKind(
                name="workflow",
                label=_("Workflow"),
                model="agents.workflow",
                required_action=Action.MANAGE_WORKFLOWS,
                action="workflow_restored",
            )
        )
