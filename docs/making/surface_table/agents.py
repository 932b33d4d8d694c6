"""Rows of agents and sessions."""

from docs.making.surface_table.types import Area, Feature

AGENTS_AREA = Area(
    "Agents",
    (
        Feature(
            "List agents",
            admin="agent.list agent.change",
            rest="list_agents get_agent",
            cli="agents list",
        ),
        Feature(
            "Create an agent",
            admin="agent.add",
            rest="create_agent",
            cli="agents add",
        ),
        Feature(
            "Update an agent",
            admin="agent.configuration agent.change",
            rest="replace_agent update_agent",
            cli="agents set, mcp apply",
        ),
        Feature(
            "Enable or disable an agent",
            admin="agent.toggle agent!enable_chosen agent!disable_chosen",
            rest="update_agent",
            cli="agents enable, agents disable",
        ),
        Feature(
            "Delete an agent",
            admin="agent.delete agent!remove_chosen",
            rest="delete_agent",
            cli="agents remove, mcp apply",
        ),
        Feature(
            "Choose an agent's built-in tools",
            admin="agent.builtin",
            rest="update_agent",
            cli="mcp apply, tools list",
        ),
        Feature(
            "Explain what an agent can use",
            admin="agent.explain",
            rest=(
                "list_agent_tools explain_tool explain_call list_agent_resources list_agent_prompts"
            ),
            cli="agents tools, agents explain",
        ),
        Feature(
            "Call a tool as an agent",
            admin="agent.explain",
            rest="call_agent_tool read_agent_resource get_agent_prompt",
            cli="agents run",
            why=(
                "The page shows the decision without making the call; to make a call, send the "
                "agent a message."
            ),
        ),
        Feature(
            "List an agent's servers",
            admin="agent.servers agent.server_states",
            rest="list_agent_servers get_agent_server",
            cli="mcp list",
        ),
        Feature(
            "Attach a server, or add a private one",
            admin=(
                "agent.servers agent.attach_selected agent.form agent.presets agent.preset "
                "agent.url agent.paste agent.openapi agent.operations agent.added"
            ),
            rest="attach_server replace_agent_server",
            cli="mcp connect, mcp add",
        ),
        Feature(
            "Choose the tools of an attached server",
            admin="agent.servers agent.attach_servers agent.toggle_server",
            rest="update_agent_server",
            cli="mcp connect, mcp disconnect",
        ),
        Feature(
            "Detach a server",
            admin="agent.detach_server",
            rest="detach_server",
            cli="mcp disconnect, mcp remove",
        ),
        Feature(
            "Test an agent's server",
            admin="agent.test_server",
            rest="test_agent_server",
            cli="mcp test",
        ),
        Feature(
            "Choose which agents an agent can call",
            admin="agent.configuration",
            rest="get_callable_agents set_callable_agents",
            cli="agents callable-agents",
        ),
        Feature(
            "Choose which members can run an agent",
            admin="agent.configuration",
            rest=(
                "list_agent_members set_agent_members clear_agent_members "
                "add_agent_member remove_agent_member"
            ),
            cli="mcp apply",
        ),
        Feature(
            "View and empty an agent's workspace",
            admin="agent.builtin agent.empty_workspace",
            rest="get_workspace empty_workspace",
            cli="agents workspace",
        ),
        Feature(
            "Manage an agent's notes",
            admin="agent.notes agent.remove_note agent.clear_notes",
            rest="list_notes get_note create_note update_note delete_note",
            cli="notes list, notes write, notes remove",
        ),
        Feature(
            "View an agent's metrics and cost",
            admin="agent.metrics usage",
            rest="get_usage export_usage",
            cli="usage show, usage export",
        ),
        Feature(
            "Get client configurations for an agent",
            admin="agent.clients",
            rest="list_agent_snippets",
            cli="mcp snippet",
        ),
        Feature(
            "Manage model endpoints",
            admin="modelendpoint.list modelendpoint.add modelendpoint.change modelendpoint.delete",
            rest=(
                "list_model_endpoints get_model_endpoint create_model_endpoint "
                "replace_model_endpoint update_model_endpoint delete_model_endpoint"
            ),
            cli="models list, models add, models set, models remove",
        ),
        Feature(
            "Test a model endpoint",
            admin="modelendpoint.test",
            rest="test_model_endpoint",
            cli="models test",
        ),
        Feature(
            "Manage skills",
            admin="skill.list skill.add skill.change skill.edit skill.delete",
            rest="list_skills get_skill create_skill update_skill delete_skill list_skill_versions",
            cli="skills list, skills show, skills add, skills set, skills remove",
        ),
        Feature(
            "Attach and detach skills and workflows",
            admin=(
                "agent.skills agent.assign_skill agent.unassign_skill "
                "agent.workflows agent.assign_workflow agent.unassign_workflow"
            ),
            rest="update_skill update_workflow",
            cli="skills set, workflows set",
        ),
        Feature(
            "Run or render a skill",
            admin="skill.run",
            rest="run_skill render_skill",
            cli="skills run",
        ),
        Feature(
            "Manage workflows",
            admin="workflow.list workflow.add workflow.change workflow.edit workflow.delete",
            rest=(
                "list_workflows get_workflow create_workflow update_workflow delete_workflow "
                "list_workflow_versions"
            ),
            cli=(
                "workflows list, workflows show, workflows add, workflows set, workflows remove, "
                "workflows steps"
            ),
        ),
        Feature(
            "Approve a workflow",
            admin="workflow.approve",
            rest="approve_workflow",
            cli="workflows approve",
        ),
        Feature(
            "Run a workflow",
            admin="workflow.run workflow.start workflow.cancel",
            rest="run_workflow list_workflow_runs get_workflow_run cancel_workflow_run",
            cli="workflows run, workflows runs, workflows cancel",
        ),
        Feature(
            "Manage a workflow's triggers",
            admin=(
                "workflow.triggers workflow.replace_secret workflow.toggle_trigger "
                "workflow.remove_trigger"
            ),
            rest=(
                "list_workflow_triggers get_workflow_trigger create_workflow_trigger "
                "update_workflow_trigger delete_workflow_trigger replace_trigger_secret"
            ),
            cli=(
                "workflows triggers, workflows add-trigger, workflows set-trigger, "
                "workflows replace-secret, workflows remove-trigger"
            ),
        ),
        Feature(
            "Start a workflow by webhook",
            rest="receive_webhook",
            why="Only for senders that have the trigger's secret.",
        ),
    ),
)


SESSIONS_AREA = Area(
    "Sessions",
    (
        Feature(
            "List sessions",
            admin="session.list session.steps session.timeline agent.sessions",
            rest="list_sessions list_agent_sessions get_session",
            cli="agents sessions",
        ),
        Feature(
            "Start a session",
            admin="agent.start",
            rest="start_session",
            cli="agents run, agents chat",
        ),
        Feature(
            "Continue a session",
            admin="session.send",
            rest="send_message",
            cli="agents chat",
        ),
        Feature(
            "Retry a message",
            admin="session.retry",
            rest="retry_message",
            cli="agents retry",
        ),
        Feature(
            "Follow a session",
            admin="session.steps",
            rest="follow_session",
            cli="agents run, agents chat",
        ),
        Feature(
            "Cancel a session",
            admin="session.cancel",
            rest="cancel_session",
            cli="agents cancel",
        ),
        Feature(
            "Release a quarantined session",
            admin="session.release",
            rest="release_session",
            cli="agents release",
        ),
        Feature(
            "Export a session",
            admin="session.export",
            rest="export_session",
            cli="agents export-session",
        ),
        Feature(
            "Import a session",
            admin="agent.import_session",
            rest="import_session",
            cli="agents import-session",
        ),
        Feature(
            "Download a session's images and files",
            admin="session.image session.file",
            rest="get_session_image get_session_file",
            why="A terminal shows neither; the export lists them.",
        ),
        Feature(
            "List and revoke session approvals",
            admin="session.revoke",
            rest="list_session_approvals revoke_session_approval",
            cli="agents session-approvals, agents revoke-session-approval",
        ),
        Feature(
            "List pending approvals",
            admin="approval.list approval.arguments",
            rest="list_approvals get_approval",
            cli="approvals list, approvals show",
        ),
        Feature(
            "Approve or deny a call",
            admin="approval.answer approval!approve_chosen approval!deny_chosen",
            rest="answer_approval",
            cli="approvals approve, approvals deny",
        ),
        Feature(
            "Request a server, a tool, or an agent",
            admin="accessrequest.add",
            rest="create_access_request",
            cli="access-requests create",
        ),
        Feature(
            "List access requests",
            admin="accessrequest.list",
            rest="list_access_requests get_access_request",
            cli="access-requests list, access-requests show",
        ),
        Feature(
            "Cancel one's own access request",
            admin="accessrequest.cancel",
            rest="cancel_access_request",
            cli="access-requests cancel",
        ),
        Feature(
            "Approve or deny an access request",
            admin=(
                "accessrequest.approve accessrequest.deny accessrequest!approve_requests "
                "accessrequest!deny_requests"
            ),
            rest="answer_access_request",
            cli="access-requests approve, access-requests deny",
        ),
        Feature(
            "List elicitation requests",
            admin="elicitationrequest.list",
            rest="list_elicitation_requests get_elicitation_request",
            cli="elicitations list, elicitations show",
        ),
        Feature(
            "Answer an elicitation request",
            admin="elicitationrequest.answer",
            rest="answer_elicitation_request",
            cli="elicitations answer",
        ),
        Feature(
            "Record a session",
            admin="session.record",
            rest="record_session",
            cli="agents record",
        ),
        Feature(
            "Manage recordings",
            admin="agent.recordings agent.recording agent.remove_recording",
            rest="list_recordings get_recording delete_recording",
            cli="agents recordings, agents remove-recording",
        ),
        Feature(
            "Replay a recording",
            admin="agent.recording agent.replay",
            rest="replay_recording list_recording_replays get_recording_replay",
            cli="agents replay",
        ),
    ),
)
