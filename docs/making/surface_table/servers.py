"""Rows of servers."""

from docs.making.surface_table.types import Area, Feature

AREA = Area(
    "Servers",
    (
        Feature(
            "List servers",
            admin="server.list server.change",
            rest="list_servers get_server",
            cli="mcp list, mcp show, mcp status, tools list-mcp",
        ),
        Feature(
            "Add a server",
            admin="server.add server.added server.url server.openapi server.operations",
            rest="create_server preview_api",
            cli="mcp add, tools add-mcp",
        ),
        Feature(
            "Add a server from a preset",
            admin="server.presets server.preset",
            rest="list_presets get_preset create_server",
            cli="mcp presets, mcp add",
        ),
        Feature(
            "Update a server",
            admin="server.configuration server.credentials server.change server.path",
            rest="replace_server update_server",
            cli="mcp apply, mcp price, mcp add",
        ),
        Feature(
            "Delete a server",
            admin="server.delete server!remove_chosen server.confirm_delete",
            rest="delete_server",
            cli="mcp remove, tools remove-mcp",
        ),
        Feature(
            "Enable or disable a server",
            admin="server.toggle server!enable_chosen server!disable_chosen server.confirm_disable",
            rest="enable_server disable_server",
            cli="mcp enable, mcp disable, tools toggle-mcp",
        ),
        Feature(
            "View the progress of a bulk job",
            admin="server.bulk_job",
            why="API clients send a request for each server instead.",
        ),
        Feature(
            "Test a server",
            admin="server.test server!test_chosen",
            rest="test_server",
            cli="mcp test, tools test-mcp",
        ),
        Feature(
            "Refresh a server's definitions",
            admin="server.refresh server!refresh_chosen",
            rest="refresh_server",
            cli="mcp refresh",
        ),
        Feature(
            "Reinstall an npx or uvx package",
            cli="mcp install",
            why=(
                "Each host installs packages automatically before the first start. The server's "
                "page and REST show the state; repairs need the host."
            ),
        ),
        Feature(
            "List tools, resources, and prompts",
            admin="server.tools server.resources server.prompts server.definitions",
            rest=(
                "list_definitions get_definition list_server_tools list_server_resources "
                "list_server_prompts"
            ),
            cli="mcp tools, mcp resources, mcp prompts, tools list",
        ),
        Feature(
            "Approve, reject, enable, or disable definitions",
            admin="server.tools server!approve_chosen server.confirm_approve",
            rest=(
                "approve_definitions approve_definition reject_definition "
                "revoke_definition_approval update_definition"
            ),
            cli="mcp approve, mcp reject, mcp apply",
        ),
        Feature(
            "Label definitions",
            admin="server.tools",
            rest="label_definitions",
            cli="mcp label",
        ),
        Feature(
            "View and clear the labels of a server's data",
            admin="server.data_labels server.clear_data_labels",
            rest="get_server_store_labels clear_server_store_labels",
            cli="mcp store-labels, mcp clear-store-labels",
        ),
        Feature(
            "Try a tool, resource, or prompt",
            admin="server.try server.try_definition server.arguments",
            rest="call_server",
            cli="mcp test-tool, mcp read, mcp prompt",
        ),
        Feature(
            "View a server's health and history",
            admin="server.health",
            rest="list_server_history get_server_uptime",
            cli="mcp history, mcp logs",
        ),
        Feature(
            "List a server's calls",
            admin="server.calls",
            rest="list_audit",
            cli="audit list",
        ),
        Feature(
            "Sign in to a server",
            admin="server.connect",
            cli="mcp login",
            why=(
                "Requires a person's browser; over REST, `get_server` reports that a sign-in is "
                "required."
            ),
        ),
        Feature(
            "Sign out of a server",
            admin="server.sign-out",
            rest="sign_out_server",
            cli="mcp logout",
        ),
        Feature(
            "Paste or import configurations",
            admin="server.paste",
            rest="import_servers get_import_progress",
            cli="mcp import",
        ),
        Feature(
            "Export servers for other clients",
            rest="export_servers",
            cli="mcp export",
            why="The file is for other clients; the tab Clients shows each client's configuration.",
        ),
        Feature(
            "Get client configurations for a server",
            admin="server.clients",
            rest="list_server_snippets",
            cli="mcp snippet",
        ),
        Feature(
            "Save a server as a preset",
            admin="server.save_preset preset.add",
            rest="create_preset",
            cli="mcp save-preset",
        ),
        Feature(
            "Update and delete presets",
            admin="preset.list preset.change preset.delete",
            rest="list_presets get_preset update_preset delete_preset",
            cli="mcp presets, mcp remove-preset",
        ),
        Feature(
            "Enable and disable a stdio preset for an organization",
            admin="preset.enable preset.disable",
            rest="enable_preset disable_preset",
            cli="mcp enable-preset, mcp disable-preset",
        ),
        Feature(
            "Manage the HTTP operations of a server",
            admin=(
                "server.operations server.operation server.operation_preview "
                "server.remove_operation"
            ),
            rest=(
                "list_declared_operations get_declared_operation create_declared_operation "
                "replace_declared_operation delete_declared_operation preview_operation"
            ),
            cli="mcp operations, mcp add-operation, mcp remove-operation",
        ),
        Feature(
            "Manage launchers",
            admin="launcher.list launcher.add launcher.change launcher.delete",
            why="A decision about the host, which no token can make.",
            cli="mcp launchers, mcp add-launcher, mcp remove-launcher",
        ),
    ),
)
