/** One message on the page: its text, reasoning, calls, faults, numbers, and what can be done with it. */

import { copyText, el } from "./dom.js";
import { fileView } from "./file_view.js";
import { icon } from "./icons.js";
import { folded } from "./mcp.js";
import { mediumView } from "./media.js";
import { codeView, drawMarkdown } from "./markdown_view.js";
import { tokensView } from "./tokens_view.js";

/**
 * What a message can ask for.
 * @typedef {object} Actions
 * @property {(message: import("./tree.js").Message, text: string) => void} edit
 * @property {(message: import("./tree.js").Message) => void} again
 * @property {(message: import("./tree.js").Message) => void} goOn
 * @property {(message: import("./tree.js").Message) => void} choose
 * @property {(message: import("./tree.js").Message, results: string[]) => void} answer results of its calls.
 * @property {(call: import("./tree.js").Call, area: HTMLTextAreaElement) => HTMLElement | undefined} offer to run it.
 * @property {(message: import("./tree.js").Message) => void} help against what went wrong.
 */

/**
 * What a message stands among.
 * @typedef {object} Place
 * @property {import("./tree.js").Message[]} versions of this message.
 * @property {boolean} running whether it is being written.
 * @property {boolean} last whether it is the last one that is shown.
 * @property {boolean} plain whether texts are no Markdown: the model has no chat template.
 */

/** Characters of a text that are drawn; the rest when it is asked for. */
const LONGEST = 100_000;

const NAMES = { user: "You", assistant: "Answer", tool: "Result" };
/** @type {Record<string, string>} */
const ENDS = { length: "limit of tokens reached", stopped: "stopped", tool_calls: "calls", edited: "edited", timeout: "out of time" };

/** What helps against an error: the buttons for it. @type {Record<string, string>} */
const HELP = { key: "Enter the key", settings: "Open the settings", new: "Ask in a new conversation" };

/** A message, drawn. */
export class MessageView {
  constructor(/** @type {import("./tree.js").Message} */ message, /** @type {Place} */ place, /** @type {Actions} */ actions) {
    this.message = message;
    this.place = place;
    this.actions = actions;
    this.tokens = false;
    this.whole = false;
    this.drawn = "";
    this.name = el("h2", { class: "who" }, this.#who());
    this.reasoning = el("details", { class: "reasoning" });
    this.media = el("div", { class: "media" }, ...(message.media ?? []).map(mediumView));
    this.media.hidden = !message.media?.length;
    this.files = el("div", { class: "files", role: "group", "aria-label": "Files" }, ...(message.files ?? []).map((file) => fileView(file)));
    this.files.hidden = !message.files?.length;
    this.text = el("div", { class: "text", dir: "auto" });
    this.calls = el("div", { class: "calls" });
    this.fault = el("div", { class: "fault-box" });
    this.foot = el("div", { class: "foot" });
    this.element = el(
      "article",
      { class: `message ${message.role}${place.plain ? " plain" : ""}`, "data-id": message.id },
      this.name,
      this.reasoning,
      this.media,
      this.files,
      this.text,
      this.calls,
      this.fault,
      this.foot,
    );
    this.draw();
  }

  #who() {
    const { role, name, model } = this.message;
    if (role === "tool") return `Result of ${name ?? "a call"}`;
    return role === "assistant" && model ? model : NAMES[role];
  }

  /** Draws the message at its place, unless it stands there already. */
  show(/** @type {Place} */ place) {
    this.place = place;
    if (this.#facts() !== this.drawn) this.draw();
  }

  /** What a drawing depends on, but for the text of an answer that is being written. */
  #facts() {
    const { message, place } = this;
    const versions = place.versions.map((each) => each.id);
    return JSON.stringify([place.running, place.last, versions, message.finish, message.error, message.content.length]);
  }

  /** Draws what has changed since the last time. */
  draw() {
    const { message, place } = this;
    this.drawn = this.#facts();
    this.element.classList.toggle("running", place.running);
    this.element.setAttribute("aria-busy", String(place.running));
    this.#drawReasoning();
    this.#drawText();
    this.#drawCalls();
    this.fault.replaceChildren(...(message.error ? this.#fault(message.error) : []));
    this.#drawFoot();
  }

  #drawReasoning() {
    const { reasoning, content, calls, stats } = this.message;
    this.reasoning.hidden = !reasoning;
    if (!reasoning) return;
    const thinking = this.place.running && !content && !calls?.length;
    const took = stats?.thought === undefined ? "" : ` for ${stats.thought.toFixed(1)} s`;
    if (!this.reasoning.firstChild) this.reasoning.append(el("summary"), el("div", { class: "reasoning-text" }));
    this.reasoning.firstChild.replaceChildren(icon("thought"), thinking ? "Thinking…" : `Thought${took}`);
    this.reasoning.classList.toggle("thinking", thinking);
    this.reasoning.lastChild.textContent = short(reasoning.trim());
  }

  #drawText() {
    const { role, content, tokens, calls, reasoning, finish } = this.message;
    if (this.tokens && tokens) {
      this.text.className = "text";
      const isWhole = !calls?.length && !reasoning; // otherwise tokens stand for more than the text
      this.text.replaceChildren(tokensView(tokens, isWhole ? content.length : Infinity));
      return;
    }
    const isEmpty = !content && !reasoning && !calls?.length;
    const waits = this.place.running && isEmpty;
    const nothing = role === "assistant" && isEmpty && (finish === "stop" || finish === "length");
    const isLong = content.length > LONGEST;
    const markdown = role === "assistant" && !this.place.plain && !waits && !nothing && !isLong;
    if (this.text.firstChild?.className === "tokens" || waits || !markdown) this.text.replaceChildren();
    this.text.className = markdown ? "text markdown" : "text verbatim";
    if (waits) this.text.append(this.#waiting());
    else if (nothing) this.text.append(el("em", { class: "nothing" }, "The model wrote nothing."));
    else if (markdown) drawMarkdown(this.text, content, this.place.running);
    else {
      const nodes = [this.whole ? content : short(content), isLong && !this.whole ? this.#rest() : ""];
      this.text.append(...(role === "tool" ? folded(content, nodes) : nodes));
    }
    this.text.hidden = !waits && !nothing && !content;
  }

  /** Shows all of a text that is too long to be drawn unasked. */
  #rest() {
    const show = () => {
      this.whole = true;
      this.draw();
    };
    const label = `Show all ${this.message.content.length.toLocaleString("en")} characters`;
    return el("button", { type: "button", class: "button wide", onclick: show }, label);
  }

  /** What stands there until the first token comes. */
  #waiting() {
    const { created, progress } = this.message;
    const seconds = Math.floor((Date.now() - created) / 1000);
    const pulse = el("span", { class: "pulse", role: "img", "aria-label": "Waiting for the first token" });
    if (!progress) return el("span", { class: "waiting" }, pulse, seconds < 1 ? "" : `The model reads: ${seconds} s`);
    const { total, cache, processed, time_ms: time } = progress;
    const left = processed > cache ? Math.ceil(((time / 1000) * (total - processed)) / (processed - cache)) : 0;
    const label = `${processed.toLocaleString("en")} of ${total.toLocaleString("en")} prompt tokens${left ? ` · ${left} s left` : ""}`;
    return el("span", { class: "waiting" }, pulse, el("progress", { max: total, value: processed, "aria-label": "Prompt" }), label);
  }

  #drawCalls() {
    const { calls } = this.message;
    if (!calls?.length) return;
    const open = this.place.last && !this.place.running && this.message.finish === "tool_calls";
    if (open && this.calls.querySelector("form")) return; // what the user has typed stays
    const cards = calls.map((call, i) => {
      const area = el("textarea", { rows: 2, class: "mono", name: "result", placeholder: "What the function returns", "aria-label": `Result of ${call.name}` });
      return el(
        "section",
        { class: "call", "aria-label": `Call ${i + 1}: ${call.name}` },
        el("h3", {}, icon("tool"), el("code", {}, call.name)),
        codeView("json", short(pretty(call.arguments))),
        open && area,
        open && this.actions.offer(call, area),
      );
    });
    if (!open) return this.calls.replaceChildren(...cards);
    const send = el("button", { class: "button main" }, calls.length > 1 ? "Send the results" : "Send the result");
    const form = el("form", { "aria-label": "Results of the calls" }, ...cards, send);
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.actions.answer(this.message, [...form.querySelectorAll("textarea")].map((area) => area.value));
    });
    form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    this.calls.replaceChildren(form);
  }

  #fault(/** @type {string} */ error) {
    const kept = this.message.content ? " The text so far is kept." : "";
    const retry = el("button", { type: "button", class: "button", onclick: () => this.actions.again(this.message) }, icon("again"), "Try again");
    const label = HELP[this.message.help ?? ""];
    const help = label ? el("button", { type: "button", class: "button", onclick: () => this.actions.help(this.message) }, label) : "";
    return [icon("alert"), el("p", { role: "alert" }, error + kept), help, retry];
  }

  #drawFoot() {
    const { message, place } = this;
    const children = [];
    if (place.versions.length > 1) children.push(this.#branches());
    if (!place.running) {
      if (message.content) children.push(this.#copy());
      children.push(this.#button("edit", message.role === "assistant" ? "Edit the answer" : "Edit", () => this.edit()));
      if (message.role === "assistant") {
        if (this.#goesOn()) children.push(this.#button("more", "Continue", () => this.actions.goOn(message)));
        children.push(this.#button("again", "Another answer", () => this.actions.again(message)));
        if (message.tokens?.length) children.push(this.#toggle());
      }
    }
    const numbers = this.#numbers();
    if (numbers) children.push(el("span", { class: "numbers" }, numbers));
    const focused = this.foot.querySelector(":focus")?.getAttribute("aria-label");
    this.foot.replaceChildren(...children);
    if (focused) this.foot.querySelector(`[aria-label="${focused}"]`)?.focus();
  }

  /** Whether the model can go on with this answer: it was stopped, cut, or edited. */
  #goesOn() {
    const { message, place } = this;
    return place.last && !place.plain && message.content && !message.calls?.length && message.finish !== "stop";
  }

  #numbers() {
    const { stats, finish, role } = this.message;
    if (role !== "assistant" || !stats || (this.place.running && !stats.tokens)) return "";
    const parts = [`${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`];
    if (stats.rate) parts.push(`${rateOf(stats.rate)} tokens/s`);
    if (stats.promptRate) parts.push(`prompt ${rateOf(stats.promptRate)} tokens/s`);
    if (stats.first !== undefined) parts.push(`first after ${stats.first.toFixed(2)} s`);
    if (stats.prompt !== undefined) parts.push(`${stats.cached ?? 0} of ${stats.prompt} prompt tokens cached`);
    const end = finish && ENDS[finish];
    if (end) parts.push(end);
    return parts.join(" · ");
  }

  #branches() {
    const { versions } = this.place;
    const now = versions.indexOf(this.message);
    const arrow = (/** @type {number} */ to, /** @type {any} */ name, /** @type {string} */ label) => {
      const made = this.#button(name, label, () => this.actions.choose(versions[to]));
      made.disabled = !versions[to];
      return made;
    };
    return el(
      "span",
      { class: "branches", role: "group", "aria-label": `Version ${now + 1} of ${versions.length}` },
      arrow(now - 1, "left", "Earlier version"),
      el("span", { class: "branch-count" }, `${now + 1}/${versions.length}`),
      arrow(now + 1, "right", "Later version"),
    );
  }

  #copy() {
    const made = this.#button("copy", "Copy", async () => {
      await copyText(this.message.content);
      made.replaceChildren(icon("check"));
    });
    return made;
  }

  #toggle() {
    const made = this.#button("bars", "Probabilities of the tokens", () => {
      this.tokens = !this.tokens;
      this.draw();
    });
    made.setAttribute("aria-pressed", String(this.tokens));
    return made;
  }

  /**
   * @param {any} name of its icon.
   * @param {string} label
   * @param {() => void} act
   */
  #button(name, label, act) {
    return el("button", { type: "button", class: "icon-button small", "aria-label": label, title: label, onclick: act }, icon(name));
  }

  /** Shows the text in a box, to be changed. What comes of it is another version. */
  edit() {
    const { message, place } = this;
    const sends = message.role !== "assistant";
    const area = el("textarea", { "aria-label": "Changed text", dir: "auto", rows: Math.min(12, message.content.split("\n").length + 1) });
    area.value = message.content;
    const done = () => {
      form.remove();
      this.text.hidden = this.foot.hidden = false;
      this.element.classList.remove("editing");
      this.draw();
    };
    const form = el(
      "form",
      { class: "edit", "aria-label": "Edit the message" },
      area,
      el(
        "div",
        { class: "edit-buttons" },
        el("button", { type: "button", class: "button", onclick: done }, "Cancel"),
        el("button", { class: "button main" }, sends ? "Send" : "Keep"),
      ),
    );
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      if (!area.value.trim() && !place.plain && !message.files?.length && !message.media?.length) return;
      done();
      this.actions.edit(message, area.value);
    });
    form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey && (sends || event.ctrlKey) && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        done();
        this.foot.querySelector('[aria-label^="Edit"]')?.focus();
      }
    });
    this.text.hidden = this.foot.hidden = true;
    this.element.classList.add("editing");
    this.text.after(form);
    area.focus({ preventScroll: true });
    area.setSelectionRange(area.value.length, area.value.length);
    form.scrollIntoView({ block: "nearest" });
  }
}

function rateOf(/** @type {number} */ rate) {
  return rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en");
}

/** The beginning of a text that is too long to be drawn. */
function short(/** @type {string} */ text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

/** JSON with its lines indented, or the text as it is while it is not complete. */
function pretty(/** @type {string} */ text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
