"""Checks pages with axe-core; the structures that many pages share only once.

A page has hundreds of parts that other pages have, too: navigation, fields, rows. Those that
`find_checked_parts.js` recognizes from pages that the same tab has shown are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, ViewportSize

from tests.browser import DESKTOP, PHONE
from tests.parts import NODE

AXE = NODE / "node_modules" / "axe-core" / "axe.min.js"
CHECKED_PARTS = Path(__file__).with_name("find_checked_parts.js")
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
# Rules that depend on the width and the colors.
SHAPES = ("color-contrast", "target-size", "scrollable-region-focusable", "link-in-text-block")
# Bars don't stick, because what scrolls below one isn't too small; the width decides which ones do.
UNSTICK_SCRIPT = """() => {
  for (const one of window.unstuck ?? []) one.style.position = "";
  window.unstuck = [...document.querySelectorAll("*")]
    .filter((one) => getComputedStyle(one).position === "sticky");
  for (const one of unstuck) one.style.position = "static";
}"""
# Colors change immediately.
PREPARE_SCRIPT = f"""() => {{
  ({UNSTICK_SCRIPT})();
  const style = document.createElement("style");
  style.textContent = "*, ::before, ::after {{ transition: none !important }}";
  document.head.append(style);
}}"""
# Style sheets aren't preloaded: only an experimental rule, which isn't run, needs them. axe lists
# duplicate ids as something to review.
RUN_SCRIPT = """async ([only, exclude]) => {
  if (exclude.includes(document.documentElement)) return [];
  const report = await axe.run({exclude},
    {resultTypes: ["violations"], preload: {assets: ["media"]}, runOnly: only});
  const duplicates = report.incomplete.filter((one) => one.id === "duplicate-id-aria");
  return [...report.violations, ...duplicates]
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)}`));
}"""
FIND_SCRIPT = "() => { window.checkedParts = findCheckedParts(); }"
# Scripts of the page follow a new width a frame later.
VIEW_SCRIPT = f"""async ([isDark, only]) => {{
  document.documentElement.classList.toggle("dark", isDark);
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  ({UNSTICK_SCRIPT})();
  return ({RUN_SCRIPT})([only, excludeNewLayouts(checkedParts)]);
}}"""


@dataclass(frozen=True)
class View:
    """A width, its colors, and the rules to check."""

    name: str
    size: ViewportSize
    is_dark: bool
    kind: str
    rules: tuple[str, ...]

    @property
    def only(self) -> dict[str, object]:
        """The rules, as axe's option."""
        return {"type": self.kind, "values": list(self.rules)}


DESK = View("desk", DESKTOP, False, "tag", WCAG)
DARK_PHONE = View("phone", PHONE, True, "rule", SHAPES)


def run_axe(page: Page, kind: str, values: tuple[str, ...]) -> list[str]:
    """Return the serious violations on the page; axe must be loaded in it."""
    page.evaluate(PREPARE_SCRIPT)
    only = {"type": kind, "values": list(values)}
    violations: list[str] = page.evaluate(RUN_SCRIPT, [only, []])
    return violations


def add_axe(page: Page) -> None:
    """Load axe in each document that the page opens."""
    page.add_init_script(path=AXE)
    page.add_init_script(path=CHECKED_PARTS)


def check_views(page: Page, *views: View) -> Iterator[tuple[View, list[str]]]:
    """Show the page in each of the views, and yield its serious violations.

    Parts with a structure that was checked before, in the same tab, are left out.
    """
    page.evaluate(PREPARE_SCRIPT)
    page.evaluate(FIND_SCRIPT)
    for view in views:
        page.set_viewport_size(view.size)
        yield view, page.evaluate(VIEW_SCRIPT, [view.is_dark, view.only])
