// The remaining time: <time data-countdown datetime="…">.
"use strict";

(() => {
  function showCountdown(container) {
    const end = Date.parse(container.getAttribute("datetime"));
    const timer = setInterval(tick, 1000);
    function tick() {
      const secondsLeft = Math.max(0, Math.floor((end - Date.now()) / 1000));
      if (!secondsLeft) clearInterval(timer);
      const parts = [Math.floor(secondsLeft / 3600), Math.floor(secondsLeft / 60) % 60, secondsLeft % 60];
      container.textContent = parts.map((part) => String(part).padStart(2, "0")).join(":");
    }
    tick();
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-countdown]").forEach(showCountdown);
  });
})();
