"""The roles page is up to date."""

from bonobot.accounts.roles import Action, Role, may
from docs.making.roles import ACTION_DESCRIPTIONS, PAGE, render_roles_page


def test_the_roles_page_is_generated_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_roles_page(), (
        "run `python -m docs.making.roles`"
    )


def test_every_action_is_described() -> None:
    assert set(ACTION_DESCRIPTIONS) == set(Action), (
        "describe each action in `ACTION_DESCRIPTIONS` in docs/making/roles.py"
    )


def test_a_row_marks_the_roles_with_the_permission() -> None:
    line = next(
        text for text in render_roles_page().splitlines() if text.startswith("| `manage_agents` |")
    )
    marks = [cell.strip() == "✓" for cell in line.split("|")[2:7]]
    assert marks == [may(role, Action.MANAGE_AGENTS) for role in Role]
