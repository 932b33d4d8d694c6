"""Rows of servers."""

from docs.making.surface_table.types import Area, Deed

AREA = Area(
    "Servers",
    (
        Deed(
            "See the servers",
            admin="server.list server.change",
            rest="list_servers get_server",
            cli="mcp list, mcp show, mcp status",
        ),
        Deed(
            "Add a server",
            admin="server.add server.openapi server.operations",
            rest="add_server preview_api",
            cli="mcp add",
        ),
        Deed(
            "Add from a preset",
            admin="server.presets server.preset",
            rest="list_presets get_preset add_server",
            cli="mcp presets, mcp add",
        ),
        Deed(
            "Change a server",
            admin="server.configuration server.credentials server.change",
            rest="replace_server change_server",
            cli="mcp apply, mcp price, mcp add",
        ),
        Deed(
            "Remove a server",
            admin="server.delete server!remove_chosen",
            rest="remove_server",
            cli="mcp remove",
        ),
        Deed(
            "Switch a server on or off",
            admin="server.switch server!enable_chosen server!disable_chosen",
            rest="enable_server disable_server",
            cli="mcp enable, mcp disable",
        ),
        Deed(
            "See how far a deed upon many servers is",
            admin="server.round",
            why="Programs ask for one after the other, and are told of each.",
        ),
        Deed(
            "Test a server",
            admin="server.test server!test_chosen",
            rest="test_server",
            cli="mcp test",
        ),
        Deed(
            "Ask a server anew what it offers",
            admin="server.refresh server!refresh_chosen",
            rest="refresh_server",
            cli="mcp refresh",
        ),
        Deed(
            "Install again what npx or uvx starts",
            cli="mcp install",
            why="It happens by itself, on each host, before the first start; a page and REST tell "
            "how it stands. To repair it, one is on the host.",
        ),
        Deed(
            "See what servers offer",
            admin="server.tools server.resources server.prompts server.definitions",
            rest=(
                "list_definitions get_definition list_server_tools list_server_resources "
                "list_server_prompts"
            ),
            cli="mcp tools, mcp resources, mcp prompts, tools list",
        ),
        Deed(
            "Approve, refuse, switch definitions",
            admin="server.tools server!approve_chosen",
            rest="approve_definitions approve_definition withdraw_approval switch_definition",
            cli="mcp approve, mcp apply",
        ),
        Deed(
            "Label definitions",
            admin="server.tools",
            rest="label_definitions",
            cli="mcp label",
        ),
        Deed(
            "Labels that a server's data carries",
            admin="server.data_labels server.clear_data_labels",
            rest="get_server_store_labels clear_server_store_labels",
            cli="mcp store-labels, mcp clear-store-labels",
        ),
        Deed(
            "Try a tool, a resource, a prompt",
            admin="server.try server.ask server.arguments",
            rest="execute",
            cli="mcp test-tool, mcp read, mcp prompt",
        ),
        Deed(
            "See a server's health and history",
            admin="server.health",
            rest="list_server_history get_server_uptime",
            cli="mcp history, mcp logs",
        ),
        Deed(
            "See the calls of a server",
            admin="server.calls",
            rest="list_audit",
            cli="audit list",
        ),
        Deed(
            "Sign in at a server",
            admin="server.connect",
            cli="mcp login",
            why="A person's browser has to go there; over REST `get_server` says that one must.",
        ),
        Deed(
            "Sign out from a server",
            admin="server.sign-out",
            rest="sign_out_server",
            cli="mcp logout",
        ),
        Deed(
            "Paste or import configurations",
            admin="server.paste",
            rest="import_servers import_progress",
            cli="mcp import",
        ),
        Deed(
            "Export servers for other clients",
            rest="export_servers",
            cli="mcp export",
            why="A file is for programs; the page of programs shows each client's own part.",
        ),
        Deed(
            "Tell programs how to reach a server",
            admin="server.programs",
            rest="list_server_snippets",
            cli="mcp snippet",
        ),
        Deed(
            "Make a server a preset",
            admin="server.save_preset preset.add",
            rest="add_preset",
            cli="mcp save-preset",
        ),
        Deed(
            "Change and remove presets",
            admin="preset.list preset.change preset.delete",
            rest="list_presets get_preset change_preset remove_preset",
            cli="mcp presets, mcp remove-preset",
        ),
        Deed(
            "Enable and disable a stdio preset for an organization",
            admin="preset.enable preset.disable",
            rest="enable_preset disable_preset",
            cli="mcp enable-preset, mcp disable-preset",
        ),
        Deed(
            "Say which operations of an API are tools",
            admin=(
                "server.operations server.operation server.operation_preview "
                "server.remove_operation"
            ),
            rest=(
                "list_declared_operations get_declared_operation add_declared_operation "
                "change_declared_operation remove_declared_operation preview_operation"
            ),
            cli="mcp operations, mcp add-operation, mcp remove-operation",
        ),
        Deed(
            "Say which programs may be started",
            admin="launcher.list launcher.add launcher.change launcher.delete",
            why="A decision about the host: no token has that right.",
            cli="mcp launchers, mcp add-launcher, mcp remove-launcher",
        ),
    ),
)
