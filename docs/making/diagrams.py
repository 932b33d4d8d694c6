"""Draws the Mermaid diagrams of the documentation: `make diagrams`.

GitHub draws the ```` ```mermaid ```` blocks of a page itself. The site loads nothing from other
hosts, and Mermaid is 3.5 MB, so its drawings are files: `docs/images/diagrams/DIGEST.svg`, named by
the digest of the block. `docs/making/site.py` puts them into the page. Needs npm and Chromium.
"""

import re
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "images" / "diagrams"
MERMAID = "mermaid@11.12.0"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Colors to recognize in the drawing, and the site's variables that replace them
# (`docs/stylesheets/bonobot.css`), so that a drawing follows light and dark.
COLORS = {
    "#f8fafc": "--drawing-box",
    "#94a3b8": "--drawing-line",
    "#4b5563": "--drawing-soft",
    "#1f2937": "--drawing-ink",
    "#eef2f7": "--drawing-area",
}
BOX, LINE, SOFT, INK, AREA = COLORS
THEME = {
    "fontFamily": "system-ui, sans-serif",
    "fontSize": "14px",
    "primaryColor": BOX,
    "primaryTextColor": INK,
    "primaryBorderColor": LINE,
    "secondaryColor": AREA,
    "tertiaryColor": AREA,
    "tertiaryBorderColor": LINE,
    "lineColor": SOFT,
    "textColor": INK,
    "edgeLabelBackground": AREA,
    "clusterBkg": AREA,
    "clusterBorder": LINE,
    "actorBkg": BOX,
    "actorBorder": LINE,
    "actorTextColor": INK,
    "actorLineColor": LINE,
    "signalColor": SOFT,
    "signalTextColor": INK,
}
DRAW = """async ([source, name, theme]) => {
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    theme: "base",
    themeVariables: theme,
    htmlLabels: false,
    flowchart: { htmlLabels: false, useMaxWidth: true, wrappingWidth: 600 },
    sequence: { useMaxWidth: true, width: 210 },
  });
  return (await mermaid.render(name, source)).svg;
}"""


def get_diagram_path(source: str) -> Path:
    """Return the file of a diagram's drawing."""
    return FOLDER / f"{sha256(source.encode()).hexdigest()[:12]}.svg"


def find_diagrams() -> dict[Path, str]:
    """Return the source of each diagram of the site's pages, by the file of its drawing."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    sources = [source for page in pages for source in BLOCK.findall(page.read_text("utf-8"))]
    return {get_diagram_path(source): source for source in sources}


def main() -> None:
    """Draw the diagrams that have no drawing yet; delete drawings of those that are gone."""
    FOLDER.mkdir(exist_ok=True)
    diagrams = find_diagrams()
    for path in set(FOLDER.glob("*.svg")) - set(diagrams):
        path.unlink()
    missing = {path: source for path, source in diagrams.items() if not path.exists()}
    if missing:
        _draw_diagrams(missing)


def _draw_diagrams(missing: dict[Path, str]) -> None:
    # Here, because the build of the site imports this module and needs neither.
    from playwright.sync_api import sync_playwright

    from tests.parts import find_chromium

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        install = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*install, MERMAID], check=True)  # noqa: S603 - a fixed command
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=Path(folder, "node_modules/mermaid/dist/mermaid.min.js"))
        for path, source in missing.items():
            drawing = page.evaluate(DRAW, [source, f"diagram-{path.stem}", THEME])
            for color, variable in COLORS.items():
                drawing = drawing.replace(color, f"var({variable}, {color})")
            path.write_text(drawing + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
