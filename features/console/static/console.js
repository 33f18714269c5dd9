// What pages do beyond links and forms: live refresh, selection, copying.
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
  const setStale = (isStale) => { stale.hidden = !isStale; };
  document.body.addEventListener("htmx:sendError", () => setStale(true));
  document.body.addEventListener("htmx:responseError", () => setStale(true));
  document.body.addEventListener("htmx:afterSwap", () => { setStale(false); restoreSelection(); showCopies(); });
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
  for (const button of all("#selection button[name=action]")) button.disabled = selected.size === 0;
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
showCopies();
document.addEventListener("click", onCopy);
