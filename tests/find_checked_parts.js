// Finds the parts of a page whose structure was checked on another page.
//
// A part is an element with everything in it. Its structure is all that rules of axe depend on: tags,
// attributes, computed styles, whether there is text, labels, and references, but no texts, ids, and values.
// A part is the same as another one if this is the same in it, in the elements around it, and for what is
// behind it.
(() => {
  const REFERENCES = new Set([
    ...["for", "form", "headers", "list"],
    ...["activedescendant", "controls", "describedby", "details", "errormessage", "labelledby", "owns"].map(
      (name) => `aria-${name}`,
    ),
  ]);
  // Attributes with texts of this page, of which only matters whether they are empty.
  const TEXTS = /^(alt|aria-(description|label|valuetext)|content|id|name|placeholder|title|value)$/;
  const ADDRESSES = /^(action|datetime|formaction|href|src|srcset|xlink:href)$/;
  const NAMES_ONLY = /^(data-|hx-|x-|@|:)/; // what they do shows in the elements and their styles
  // What rules look at, and what style sheets may change by ids, values, and places.
  const STYLES = [
    ...["display", "visibility", "opacity", "position", "overflowX", "overflowY"],
    ...["color", "backgroundColor", "backgroundImage", "fontSize", "fontWeight"],
  ];
  const TARGETS = "a[href], button, input, select, summary, textarea, [role], [tabindex]";
  const TARGET_SIZE = 24;
  // Rules about lists, tables, and widgets look at the elements around a part.
  const ANCESTORS = 3;

  function hash(text) {
    let [a, b] = [0xdeadbeef, 0x41c6ce57];
    for (let at = 0; at < text.length; at++) {
      const code = text.charCodeAt(at);
      a = Math.imul(a ^ code, 2654435761);
      b = Math.imul(b ^ code, 1597334677);
    }
    return ((b >>> 0) * 4096 + (a >>> 20)).toString(36);
  }

  const describeText = (text) => Math.min(text.trim().length, 2);

  function describeReferences(value) {
    const targets = value.split(/\s+/).map((id) => document.getElementById(id));
    return targets.map((target) => target && `${target.localName}${describeText(target.textContent)}`);
  }

  function describeAttribute({ name, value }) {
    if (NAMES_ONLY.test(name)) return name;
    if (TEXTS.test(name)) return `${name}=${describeText(value)}`;
    if (ADDRESSES.test(name)) return `${name}=${value[0]}`;
    if (REFERENCES.has(name)) return `${name}=${describeReferences(value)}`;
    return `${name}=${value}`;
  }

  // Returns what is behind the text of an element: backgrounds down to the first opaque one.
  function extendBackdrop(backdrop, { backgroundColor, backgroundImage, opacity }) {
    const isOpaque = backgroundColor.startsWith("rgb(") && backgroundImage === "none" && opacity === "1";
    if (isOpaque) return backgroundColor;
    const isClear = backgroundColor === "rgba(0, 0, 0, 0)" && backgroundImage === "none" && opacity === "1";
    return isClear ? backdrop : `${backdrop} ${backgroundColor} ${backgroundImage} ${opacity}`;
  }

  const isScrolling = (element, { overflowX, overflowY }) =>
    /auto|scroll/.test(overflowX + overflowY) &&
    (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight);

  function describeElement(element, style, ids) {
    const text = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    const parts = [
      element.localName,
      ...[...element.attributes].map(describeAttribute).sort(),
      ...STYLES.map((name) => style[name]),
      describeText(text.map((node) => node.data).join("")),
      ...[...(element.labels ?? [])].map((label) => `label${describeText(label.textContent)}`),
      element.localName === "svg" ? describeText(element.textContent) : "",
      ids.get(element.id) > 1 ? "shares its id" : "",
      isScrolling(element, style) ? "scrolls" : "",
    ];
    return parts.join("|");
  }

  // Returns small targets, with the places and sizes of those so near that one might be meant for the other.
  function findCrowded() {
    const targets = [...document.querySelectorAll(TARGETS)]
      .map((element) => ({ element, box: element.getBoundingClientRect() }))
      .filter(({ box }) => box.width && box.height);
    const isNear = (one, other) =>
      Math.abs(one.x + one.width / 2 - other.x - other.width / 2) < (TARGET_SIZE + other.width) / 2 &&
      Math.abs(one.y + one.height / 2 - other.y - other.height / 2) < (TARGET_SIZE + other.height) / 2;
    const crowded = new Map();
    for (const { element, box } of targets) {
      if (box.width >= TARGET_SIZE && box.height >= TARGET_SIZE) continue;
      const near = targets.filter((other) => other.element !== element && isNear(box, other.box));
      const places = near.map(({ box: { x, y, width, height } }) => [x - box.x, y - box.y, width, height]);
      const layout = [[box.width, box.height], ...places].flat().map(Math.round).join();
      if (near.length) crowded.set(element, layout);
    }
    return crowded;
  }

  function countIds() {
    const ids = new Map();
    for (const { id } of document.querySelectorAll("[id]")) ids.set(id, (ids.get(id) ?? 0) + 1);
    return ids;
  }

  function measureStructure(root) {
    const [ids, crowded, structures] = [countIds(), findCrowded(), new Map()];
    const measure = (element, outerBackdrop) => {
      const style = getComputedStyle(element);
      const backdrop = extendBackdrop(outerBackdrop, style);
      const own = hash(`${backdrop}|${describeElement(element, style, ids)}|${crowded.get(element) ?? ""}`);
      const isDrawing = element.localName === "svg";
      const children = isDrawing ? [] : [...element.children].map((child) => measure(child, backdrop));
      // Of equal neighbors, such as the rows of a table, the number doesn't matter.
      const distinct = children.filter((child, at) => child !== children[at - 1]);
      const digest = hash([own, ...distinct].join("\n"));
      structures.set(element, { own, digest });
      return digest;
    };
    measure(root, "");
    return structures;
  }

  // Returns the parts that an earlier call has seen, on any page of the tab.
  window.findCheckedParts = () => {
    const seen = new Set(sessionStorage.getItem("checked parts")?.split(" "));
    const structures = measureStructure(document.documentElement);
    const checked = [];
    const visit = (element, around) => {
      const { own, digest } = structures.get(element);
      const key = hash([...around, digest].join("\n"));
      if (seen.has(key)) {
        checked.push(element);
        return;
      }
      seen.add(key);
      if (element.localName === "svg") return;
      for (const child of element.children) visit(child, [own, ...around].slice(0, ANCESTORS));
    };
    visit(document.documentElement, []);
    sessionStorage.setItem("checked parts", [...seen].join(" "));
    return checked;
  };

  // Returns those of the parts in which this width doesn't bring small targets together, or make anything
  // scroll, in a way that wasn't seen before.
  window.excludeNewLayouts = (parts) => {
    const seen = new Set(sessionStorage.getItem("layouts")?.split(" "));
    const layouts = [...findCrowded()];
    for (const element of document.querySelectorAll("main, main *"))
      if (isScrolling(element, getComputedStyle(element))) layouts.push([element, "scrolls"]);
    const changed = layouts.filter(([element, layout]) => {
      const key = hash(`${element.localName}|${element.className}|${element.tabIndex}|${layout}`);
      return !seen.has(key) && seen.add(key);
    });
    sessionStorage.setItem("layouts", [...seen].join(" "));
    return parts.filter((part) => !changed.some(([element]) => part.contains(element)));
  };
})();
