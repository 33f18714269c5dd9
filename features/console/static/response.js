// The page of one response: its events, texts that grow while it runs, and what stays unfolded.
"use strict";

// --- the list of events ---

const MOST_LINES = 1000;
const MOST_DETAIL = 2000;

function tailLine(event) {
  const line = document.createElement("li");
  line.dataset.kind = event.kind;
  for (const name of ["number", "type", "detail"]) {
    const part = document.createElement("span");
    part.className = name;
    line.append(part);
  }
  return line;
}

function fillLine(line, event) {
  const [number, type, detail] = line.children;
  number.textContent = event.first === event.last ? event.first : `${event.first}–${event.last}`;
  type.textContent = event.count > 1 ? `${event.type} × ${event.count}` : event.type;
  detail.textContent = event.detail.slice(0, MOST_DETAIL);
}

class EventList {
  constructor(list) {
    this.list = list;
    this.last = null;
  }

  add(event) {
    const isMore = this.last !== null && event.type.endsWith(".delta")
      && event.type === this.last.type && event.item === this.last.item;
    if (isMore) {
      this.last.last = event.last;
      this.last.count += event.count;
      if (this.last.detail.length < MOST_DETAIL) this.last.detail += event.detail;
    } else {
      this.last = event;
      this.list.append(tailLine(event));
    }
    fillLine(this.list.lastElementChild, this.last);
    while (this.list.childElementCount > MOST_LINES) this.list.firstElementChild.remove();
  }
}

// --- texts that grow ---

const MOST_TEXT = 200_000;
const TITLES = { message: "Assistant", reasoning: "Reasoning" };

class LiveTexts {
  constructor(place) {
    this.place = place;
    this.shown = new Set(JSON.parse(place.dataset.shown));
    this.texts = new Map();
  }

  add(event) {
    if (!event.item || this.shown.has(event.item)) return;
    if (event.type === "response.output_item.added") this.begin(event.item, event.detail, event.status);
    else if (event.type.endsWith(".delta")) this.grow(event.item, event.detail);
    else if (event.type === "response.output_item.done" && event.status === "incomplete") this.drop(event.item);
  }

  begin(item, facts, status) {
    const [type, name] = facts.split(", ").filter((word) => word !== status);
    const entry = document.createElement("article");
    entry.className = type === "message" ? "entry message of-model" : "entry call";
    const title = document.createElement("h4");
    title.textContent = TITLES[type] || name || type;
    const text = document.createElement("div");
    text.className = "text";
    text.dir = "auto";
    text.append("");
    entry.append(title, text);
    this.place.append(entry);
    this.texts.set(item, text.firstChild);
  }

  // A death or a broken answer: the turn is repeated, and this item is not part of the output.
  drop(item) {
    const entry = this.texts.get(item)?.parentElement.parentElement;
    if (entry) entry.querySelector("h4").textContent += " (broken off)";
    entry?.classList.add("broken-off");
  }

  grow(item, piece) {
    if (!this.texts.has(item)) this.begin(item, "message", "");
    const text = this.texts.get(item);
    text.appendData(piece);
    // The whole text is there when the response has ended.
    if (text.length > MOST_TEXT) text.deleteData(0, text.length - MOST_TEXT / 2);
  }
}

// --- the stream of events ---

function openTail(tail) {
  const list = tail.querySelector(".events");
  const state = tail.querySelector("[data-tail-state]");
  const follow = tail.querySelector("[data-follow]");
  const place = document.querySelector("[data-shown]");
  const events = new EventList(list);
  const texts = place === null ? null : new LiveTexts(place);
  // The browser connects again by itself, and sends the number of the last event.
  const source = new EventSource(tail.dataset.tail);
  source.addEventListener("open", () => { state.textContent = "live"; });
  source.addEventListener("error", () => {
    state.textContent = source.readyState === EventSource.CLOSED ? "not live" : "connecting again";
  });
  source.addEventListener("message", (message) => {
    const event = JSON.parse(message.data);
    if (texts !== null) texts.add(event);
    events.add(event);
    if (follow.checked) list.scrollTop = list.scrollHeight;
  });
  source.addEventListener("end", () => {
    source.close();
    state.textContent = "complete";
    // What has grown is replaced by what is stored.
    if (texts !== null) htmx.trigger("#conversation", "ended");
  });
}

function setUpTail() {
  const tail = document.querySelector("[data-tail]");
  const list = tail.querySelector(".events");
  const filters = tail.querySelector(".filters");
  filters.hidden = false;
  const show = () => {
    for (const box of all("[data-kind]", filters)) {
      list.classList.toggle(`without-${box.dataset.kind}`, !box.checked);
    }
  };
  filters.addEventListener("change", show);
  show();
  let isOpen = false;
  const open = () => {
    if (!isOpen) openTail(tail);
    isOpen = true;
  };
  if (document.querySelector("[data-shown]") !== null) open();
  tail.closest("details").addEventListener("toggle", open);
}

// --- what was unfolded stays so while the page is refreshed ---

const unfolded = new Set();

function setUpFolds() {
  document.addEventListener("toggle", (event) => {
    if (!event.target.id) return;
    if (event.target.open) unfolded.add(event.target.id);
    else unfolded.delete(event.target.id);
  }, true);
  document.body.addEventListener("htmx:afterSwap", () => {
    for (const id of unfolded) {
      const folded = document.getElementById(id);
      if (folded !== null) folded.open = true;
    }
  });
}

setUpFolds();
setUpTail();
