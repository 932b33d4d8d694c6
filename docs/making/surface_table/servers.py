"""Rows of servers."""

from docs.making.surface_table.types import Area, Deed

AREA = Area(
    "Servers",
    (
        Deed(
            "List servers",
            admin="server.list server.change",
            rest="list_servers get_server",
            cli="mcp list, mcp show, mcp status, tools list-mcp",
        ),
        Deed(
            "Add a server",
            admin="server.add server.openapi server.operations",
            rest="create_server preview_api",
            cli="mcp add, tools add-mcp",
        ),
        Deed(
            "Add a server from a preset",
            admin="server.presets server.preset",
            rest="list_presets get_preset create_server",
            cli="mcp presets, mcp add",
        ),
        Deed(
            "Update a server",
            admin="server.configuration server.credentials server.change",
            rest="replace_server update_server",
            cli="mcp apply, mcp price, mcp add",
        ),
        Deed(
            "Delete a server",
            admin="server.delete server!remove_chosen",
            rest="delete_server",
            cli="mcp remove, tools remove-mcp",
        ),
        Deed(
            "Enable or disable a server",
            admin="server.switch server!enable_chosen server!disable_chosen",
            rest="enable_server disable_server",
            cli="mcp enable, mcp disable, tools toggle-mcp",
        ),
        Deed(
            "View the progress of a bulk job",
            admin="server.round",
            why="API clients send a request for each server instead.",
        ),
        Deed(
            "Test a server",
            admin="server.test server!test_chosen",
            rest="test_server",
            cli="mcp test, tools test-mcp",
        ),
        Deed(
            "Rescan a server's definitions",
            admin="server.refresh server!refresh_chosen",
            rest="refresh_server",
            cli="mcp refresh",
        ),
        Deed(
            "Reinstall an npx or uvx package",
            cli="mcp install",
            why=(
                "Each host installs packages automatically before the first start. The server's "
                "page and REST show the state; repairs need the host."
            ),
        ),
        Deed(
            "List tools, resources, and prompts",
            admin="server.tools server.resources server.prompts server.definitions",
            rest=(
                "list_definitions get_definition list_server_tools list_server_resources "
                "list_server_prompts"
            ),
            cli="mcp tools, mcp resources, mcp prompts, tools list",
        ),
        Deed(
            "Approve, reject, enable, or disable definitions",
            admin="server.tools server!approve_chosen",
            rest=(
                "approve_definitions approve_definition revoke_definition_approval "
                "update_definition"
            ),
            cli="mcp approve, mcp apply",
        ),
        Deed(
            "Label definitions",
            admin="server.tools",
            rest="label_definitions",
            cli="mcp label",
        ),
        Deed(
            "View and clear the labels of a server's data",
            admin="server.data_labels server.clear_data_labels",
            rest="get_server_store_labels clear_server_store_labels",
            cli="mcp store-labels, mcp clear-store-labels",
        ),
        Deed(
            "Try a tool, resource, or prompt",
            admin="server.try server.ask server.arguments",
            rest="call_server",
            cli="mcp test-tool, mcp read, mcp prompt",
        ),
        Deed(
            "View a server's health and history",
            admin="server.health",
            rest="list_server_history get_server_uptime",
            cli="mcp history, mcp logs",
        ),
        Deed(
            "List a server's calls",
            admin="server.calls",
            rest="list_audit",
            cli="audit list",
        ),
        Deed(
            "Sign in to a server",
            admin="server.connect",
            cli="mcp login",
            why=(
                "Requires a person's browser; over REST, `get_server` reports that a sign-in is "
                "required."
            ),
        ),
        Deed(
            "Sign out of a server",
            admin="server.sign-out",
            rest="sign_out_server",
            cli="mcp logout",
        ),
        Deed(
            "Paste or import configurations",
            admin="server.paste",
            rest="import_servers get_import_progress",
            cli="mcp import",
        ),
        Deed(
            "Export servers for other clients",
            rest="export_servers",
            cli="mcp export",
            why="The file is for other clients; the tab Clients shows each client's configuration.",
        ),
        Deed(
            "Get client configurations for a server",
            admin="server.programs",
            rest="list_server_snippets",
            cli="mcp snippet",
        ),
        Deed(
            "Save a server as a preset",
            admin="server.save_preset preset.add",
            rest="create_preset",
            cli="mcp save-preset",
        ),
        Deed(
            "Update and delete presets",
            admin="preset.list preset.change preset.delete",
            rest="list_presets get_preset update_preset delete_preset",
            cli="mcp presets, mcp remove-preset",
        ),
        Deed(
            "Enable and disable a stdio preset for an organization",
            admin="preset.enable preset.disable",
            rest="enable_preset disable_preset",
            cli="mcp enable-preset, mcp disable-preset",
        ),
        Deed(
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
        Deed(
            "Manage launchers",
            admin="launcher.list launcher.add launcher.change launcher.delete",
            why="A decision about the host, which no token can make.",
            cli="mcp launchers, mcp add-launcher, mcp remove-launcher",
        ),
    ),
)
