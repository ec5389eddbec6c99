// Before the first paint: the colours that were chosen, so that the page does not flash.
"use strict";
try {
  const theme = localStorage.getItem("oxillama.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing has the colours of the system.
}
