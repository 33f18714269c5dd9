// What pages do beyond links and forms: live refresh, selection, keys, copying.
"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- theme ---

function setUpTheme() {
  const button = document.querySelector("[data-theme-toggle]");
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch (error) {
      // It counts for this page only.
    }
  });
}

// --- live refresh ---

let isPaused = false;

function refreshLive() {
  const live = document.querySelector("[data-live]");
  if (live === null) {
    // A response that has ended refreshes itself no more.
    document.querySelector("[data-pause]").hidden = true;
    return;
  }
  if (!isPaused && document.visibilityState === "visible") htmx.trigger(live, "refresh");
  setTimeout(refreshLive, 1000 * Number(live.dataset.live));
}

function setUpLive() {
  const live = document.querySelector("[data-live]");
  const button = document.querySelector("[data-pause]");
  if (live === null || button === null) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    button.setAttribute("aria-pressed", String(isPaused));
    button.textContent = isPaused ? "Paused" : "Pause";
  });
  setTimeout(refreshLive, 1000 * Number(live.dataset.live));
  const stale = document.getElementById("stale");
  const setStale = (isStale) => {
    stale.hidden = !isStale;
    document.body.classList.toggle("is-stale", isStale);
  };
  document.body.addEventListener("htmx:sendError", () => setStale(true));
  document.body.addEventListener("htmx:responseError", () => setStale(true));
  let unfolded = [];
  document.body.addEventListener("htmx:beforeSwap", () => {
    unfolded = all("[data-live] details[open][id]").map((details) => details.id);
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    setStale(false);
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
    restoreSelection();
    showCopies();
  });
}

// --- selection: kept while the list is refreshed ---

const selected = new Set();

function restoreSelection() {
  const boxes = all("#selection input[name=id]");
  const shown = new Set(boxes.map((box) => box.value));
  // What is not on the page any more is not selected any more: nobody acts on what is not seen.
  for (const id of [...selected]) if (!shown.has(id)) selected.delete(id);
  for (const box of boxes) box.checked = selected.has(box.value);
  showSelection(boxes);
}

function showSelection(boxes) {
  const text = document.querySelector("[data-selected]");
  if (text === null) return;
  text.textContent = selected.size ? `${selected.size} selected` : "Select responses to act on them.";
  // A button may need one response at least, or exactly as many as it says.
  for (const button of all("#selection button")) {
    const wanted = Number(button.dataset.selects || 0);
    button.disabled = wanted ? selected.size !== wanted : selected.size === 0;
  }
  const box = document.querySelector("[data-all]");
  box.hidden = boxes.length === 0;
  box.checked = boxes.length > 0 && selected.size === boxes.length;
}

function onSelect(event) {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || box.closest("#selection") === null) return;
  const changed = box.matches("[data-all]") ? all("#selection input[name=id]") : [box];
  for (const one of changed) {
    one.checked = box.checked;
    if (box.checked) selected.add(one.value);
    else selected.delete(one.value);
  }
  showSelection(all("#selection input[name=id]"));
}

function setUpSelection() {
  if (document.getElementById("selection") === null) return;
  // After "back" the browser has kept the boxes as they were.
  for (const box of all("#selection input[name=id]")) if (box.checked) selected.add(box.value);
  document.addEventListener("change", onSelect);
  restoreSelection();
}

// --- menu of a small screen ---

function setMenu(isOpen) {
  const button = document.querySelector("[data-menu]");
  button?.setAttribute("aria-expanded", String(isOpen));
}

function setUpMenu() {
  const button = document.querySelector("[data-menu]");
  button?.addEventListener("click", () => setMenu(button.getAttribute("aria-expanded") !== "true"));
}

// --- rows: the first link of a row is what the row is about ---

const rowLink = (row) => row.querySelector("a[href]");
const rowsWithLinks = () => all("table.list tbody tr").filter((row) => rowLink(row) !== null);

function onRowClick(event) {
  const row = event.target.closest("table.list tbody tr");
  const isElsewhere = event.target.closest("a, button, input, label, select, summary, td.check") !== null;
  if (row === null || isElsewhere || rowLink(row) === null) return;
  if (getSelection().type === "Range") return; // Somebody has marked a text.
  if (event.ctrlKey || event.metaKey) open(rowLink(row).href, "_blank", "noopener");
  else rowLink(row).click();
}

function moveToRow(step) {
  const rows = rowsWithLinks();
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = at === -1 ? 0 : Math.min(Math.max(at + step, 0), rows.length - 1);
  if (rows.length === 0) return;
  rowLink(rows[next]).focus();
  rows[next].scrollIntoView({ block: "nearest" });
}

// --- keys ---

const isTyped = (target) => target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.key === "Escape") {
    setMenu(false);
    document.activeElement.blur();
  } else if (isTyped(event.target)) {
    return;
  } else if (event.key === "/") {
    const field = document.querySelector("[role=search] input:not([type=hidden])");
    if (field === null) return;
    event.preventDefault(); // The character is not for the field.
    field.focus();
    field.select();
  } else if (event.key === "j" || event.key === "k") {
    moveToRow(event.key === "j" ? 1 : -1);
  }
}

function setUpKeys() {
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onRowClick);
  const hint = document.querySelector("[data-keys]");
  if (hint !== null) hint.hidden = rowsWithLinks().length === 0;
  // A refresh makes the rows anew: the focus stays on the link to the same page.
  let address = null;
  document.body.addEventListener("htmx:beforeSwap", () => {
    address = document.activeElement.closest("[data-live] a[href]")?.getAttribute("href") ?? null;
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    if (address === null || document.activeElement !== document.body) return;
    all("[data-live] a[href]").find((link) => link.getAttribute("href") === address)?.focus({ preventScroll: true });
  });
}

// --- copying ---

function showCopies() {
  for (const button of all("[data-copy]")) button.hidden = !navigator.clipboard;
}

async function onCopy(event) {
  const button = event.target.closest("[data-copy]");
  if (button === null) return;
  const text = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch (error) {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = text; }, 1500);
}

setUpTheme();
setUpLive();
setUpSelection();
setUpMenu();
setUpKeys();
showCopies();
document.addEventListener("click", onCopy);
