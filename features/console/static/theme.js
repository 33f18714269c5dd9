// Before the page is shown: the theme that was chosen, if one was.
"use strict";
// The menu of a small screen is folded only where a script can open it.
document.documentElement.dataset.script = "";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (error) {
  // Storage is switched off: the theme follows the system.
}
