"""The page on roles is current: `python -m tests.bonobot.tenancy.test_roles_page` writes it."""

from pathlib import Path

from bonobot.tenancy.roles import Action, Role, may
from bonobot.tenancy.roles_page import MEANS, page

PAGE = Path(__file__).parents[3] / "docs" / "roles.md"


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_action_is_described() -> None:
    assert set(MEANS) == set(Action)


def test_a_line_marks_those_who_may() -> None:
    line = next(one for one in page().splitlines() if one.startswith("| `manage_agents` |"))
    marks = [cell.strip() == "✓" for cell in line.split("|")[2:7]]
    assert marks == [may(role, Action.MANAGE_AGENTS) for role in Role]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
