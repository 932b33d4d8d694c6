"""The installation: processes, keys, and pages that only people need."""

from bonobot.surfaces.deeds import Area, Deed

HOST = "Needs the host: its processes, files or keys."
SIGHT = "A page that leads people; what it leads to has its own row."

AREA = Area(
    "Installation",
    (
        Deed(
            "Start programs",
            cli="up, web, worker, beat",
            why=HOST,
        ),
        Deed(
            "Look for faults",
            admin="settings_check",
            cli="doctor",
            why="Programs ask `/readyz?all` and `/metrics`, which say it in numbers.",
        ),
        Deed(
            "Save and put back everything",
            cli="backup, restore",
            why=HOST,
        ),
        Deed(
            "Keys of sealed values",
            cli="keys status, keys rotate, keys drop",
            why=HOST,
        ),
        Deed(
            "The configuration as a file",
            cli="mcp export, mcp apply",
            why=HOST,
        ),
        Deed(
            "Serve one client over standard input",
            cli="mcp serve",
            why=HOST,
        ),
        Deed(
            "Complete words in the shell",
            cli="completion",
            why=HOST,
        ),
        Deed(
            "When periodic work runs",
            admin="periodictask.list periodictask.change",
            why="A platform administrator's; files set it by `BONOBOT_*`.",
        ),
        Deed(
            "The dashboard, search, the palette",
            admin="index search palette app_list autocomplete",
            why=SIGHT,
        ),
        Deed(
            "The first run",
            admin=(
                "first_run first_run_preset first_run_presets first_run_paste first_run_openapi "
                "first_run_operations first_run_form"
            ),
            rest="get_first_run change_first_run",
            cli=(
                "first-run show, first-run skip, first-run take-up, first-run hide, "
                "first-run unhide"
            ),
        ),
        Deed(
            "Signing in to the admin",
            admin="login logout password_change password_change_done",
            why="Programs have tokens.",
        ),
        Deed(
            "What Django's pages need",
            admin="jsi18n view_on_site",
            why="Parts of pages.",
        ),
    ),
)
