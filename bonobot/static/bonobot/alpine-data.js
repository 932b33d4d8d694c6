// Data of the theme's pages. Its own build of Alpine compiles expressions, which a page without
// `unsafe-eval` may not do; the build for that evaluates simple ones, and knows functions and
// browser objects only as data of the page.
"use strict";

document.addEventListener("alpine:init", () => {
  const theirs = { theme, searchForm, searchDropdown, searchCommand };
  for (const [name, data] of Object.entries(theirs)) Alpine.data(name, data);

  Alpine.data("page", (tab) => ({
    activeTab: getCurrentTab() || tab,
    sidebarMobileOpen: false,
    sidebarDesktopOpen: localStorage.getItem("sidebarDesktopOpen") !== "0",
    // Expressions may read no global, so these stand in for them.
    window: {
      location: {
        get pathname() {
          return location.pathname;
        },
        get search() {
          return location.search;
        },
      },
    },
    sortRecords: (event) => sortRecords(event),
    moveRecords: (event) => moveRecords(event),
    init() {
      this.$watch("sidebarDesktopOpen", (open) =>
        localStorage.setItem("sidebarDesktopOpen", open ? "1" : "0"),
      );
    },
  }));
});
