/** The conversations that are kept: to open, search, rename and delete. */

import { byId, el } from "./dom.js";
import { icon } from "./icons.js";
import { ask } from "./notices.js";

const DAY = 86_400_000;

/** The list, and its search. */
export class Sidebar {
  /**
   * @param {object} actions
   * @param {(id: string) => void} actions.open
   * @param {(id: string, title: string) => void} actions.rename
   * @param {(id: string) => void} actions.remove
   */
  constructor(actions) {
    this.actions = actions;
    this.list = byId("conversations");
    this.search = byId("search");
    /** @type {import("./store.js").Summary[]} */
    this.summaries = [];
    this.current = "";
    /** @type {Set<string>} */
    this.running = new Set();
    this.search.addEventListener("input", () => this.draw());
    this.search.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "ArrowDown") this.list.querySelector("button")?.focus();
    });
    this.list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#move(event));
  }

  /** Draws the list. */
  draw() {
    /** @type {string[]} */
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.summaries.filter(({ title, text }) => words.every((word) => title.toLowerCase().includes(word) || text.includes(word)));
    const focused = /** @type {any} */ (document.activeElement)?.closest?.("[data-conversation]")?.dataset.conversation;
    /** @type {any[]} */
    const children = [];
    let age = "";
    let list = null;
    for (const each of found) {
      if (ageOf(each.updated) !== age) {
        age = ageOf(each.updated);
        list = el("ul", { "aria-label": age });
        children.push(el("h2", {}, age), list);
      }
      list.append(this.#entry(each));
    }
    if (!found.length) children.push(el("p", { class: "none" }, words.length ? "Nothing found." : "No conversations yet."));
    this.list.replaceChildren(...children);
    if (focused) this.list.querySelector(`[data-conversation="${focused}"] button`)?.focus();
  }

  /** @param {import("./store.js").Summary} summary */
  #entry({ id, title }) {
    const button = (/** @type {any} */ name, /** @type {string} */ label, /** @type {() => void} */ act) =>
      el("button", { type: "button", class: "icon-button small", "aria-label": `${label}: ${title}`, title: label, onclick: act }, icon(name));
    const current = id === this.current;
    return el(
      "li",
      { "data-conversation": id, class: current ? "current" : "" },
      el(
        "button",
        { type: "button", class: "open", "aria-current": current ? "page" : null, title, onclick: () => this.actions.open(id) },
        this.running.has(id) && el("span", { class: "dot", role: "img", "aria-label": "being written" }),
        title,
      ),
      el("span", { class: "entry-actions" }, button("edit", "Rename", () => this.#rename(id, title)), button("trash", "Delete", () => this.#remove(id, title))),
    );
  }

  async #rename(/** @type {string} */ id, /** @type {string} */ title) {
    const input = el("input", { type: "text", id: "new-title", required: true, maxlength: 200 });
    input.value = title;
    const content = [el("label", { for: "new-title", class: "sr-only" }, "Title"), input];
    const done = await ask("Rename the conversation", content, [{ value: "yes", label: "Rename", kind: "main" }]);
    if (done && input.value.trim()) this.actions.rename(id, input.value.trim());
  }

  async #remove(/** @type {string} */ id, /** @type {string} */ title) {
    const buttons = [
      { value: "", label: "Cancel" },
      { value: "yes", label: "Delete", kind: "danger" },
    ];
    const text = el("p", {}, `“${title}” is gone from this browser then. This cannot be undone.`);
    if (await ask("Delete the conversation?", [text], buttons)) this.actions.remove(id);
  }

  #move(/** @type {KeyboardEvent} */ event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key] ?? 0;
    if (!step) return;
    event.preventDefault();
    const all = [...this.list.querySelectorAll(".open")];
    const here = /** @type {any} */ (document.activeElement)?.closest("li")?.querySelector(".open");
    (all[all.indexOf(here) + step] ?? (step < 0 ? this.search : here)).focus();
  }
}

function ageOf(/** @type {number} */ updated) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (updated >= today) return "Today";
  if (updated >= today - DAY) return "Yesterday";
  if (updated >= today - 7 * DAY) return "The last 7 days";
  return "Earlier";
}
