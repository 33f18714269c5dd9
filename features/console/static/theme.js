// Before the page is shown: the theme that was chosen, if one was.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (error) {
  // Storage is switched off: the theme follows the system.
}
