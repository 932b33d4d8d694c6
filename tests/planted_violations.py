"""Violations that tests plant on pages, to show that axe finds them there."""

from playwright.sync_api import Page

from tests.axe import DARK_PHONE, DESK, View

# Changes the first visible elements that no other change has used; returns whether there are some.
PLANT_SCRIPT = """() => {
  window.used ??= new Set();
  const hasText = ({ childNodes }) =>
    [...childNodes].some((node) => node.nodeType === 3 && node.data.trim().length > 2);
  const find = (selector, isFit = () => true) => {
    const element = [...document.querySelectorAll(`main :is(${selector})`)]
      .find((one) => one.checkVisibility({ opacityProperty: true }) && one.offsetWidth > 12 &&
        one.offsetHeight > 12 && !one.disabled && !used.has(one) && isFit(one));
    if (!element) throw new RangeError("absent");
    used.add(element);
    return element;
  };
  try {
    CHANGE
  } catch (error) {
    if (error instanceof RangeError) return false;
    throw error;
  }
  return true;
}"""
# What is wrong, the rule that finds it, and a change of an element of the page that makes it so.
PLANTED: tuple[tuple[str, View, str], ...] = (
    (
        "label",
        DESK,
        """const field = find("input[type=text], input:not([type]), input[type=search], textarea");
        for (const name of ["aria-label", "aria-labelledby", "placeholder", "title"])
          field.removeAttribute(name);
        for (const label of [...field.labels]) {
          label.removeAttribute("for");
          if (label.contains(field)) label.replaceWith(field);
        }""",
    ),
    (
        "button-name",
        DESK,
        """const button = find("button");
        for (const name of ["aria-label", "aria-labelledby", "title"]) button.removeAttribute(name);
        button.replaceChildren();""",
    ),
    ("link-name", DESK, """find("a[href]").innerHTML = "<span></span>";"""),
    ("color-contrast", DESK, """find("h1, h2, h3, p, label, td", hasText).style.color = "#ccc";"""),
    (
        "duplicate-id-aria",
        DESK,
        """const label = find("label[for]");
        find("h1, h2, h3, p").id = label.htmlFor;""",
    ),
    (
        "aria-valid-attr-value",
        DESK,
        """find("a[href], button").setAttribute("aria-expanded", "perhaps");""",
    ),
    ("image-alt", DESK, """find("h1, h2, h3, p, td").append(new Image(16, 16));"""),
    (
        "color-contrast",
        DARK_PHONE,
        """find("h1, h2, h3, p, label, td", hasText).style.color = "#555";""",
    ),
    (
        "target-size",
        DARK_PHONE,
        """const row = document.createElement("div");
        const style = "width: 10px; height: 10px; min-height: 0; padding: 0; margin: 0; border: 0";
        row.innerHTML = `<button style="${style}">x</button>`.repeat(2);
        row.style.display = "flex";
        find("div, section").prepend(row);""",
    ),
)


def plant_violation(page: Page, change: str) -> bool:
    """Change the page; return whether it has the elements for that."""
    planted: bool = page.evaluate(PLANT_SCRIPT.replace("CHANGE", change))
    return planted
