/** The settings of a conversation, and the panel in which they are changed. */

import { byId, el } from "./dom.js";
import { icon } from "./icons.js";
import { SettingError, options } from "./request.js";

/**
 * @typedef {object} Settings
 * @property {string} system
 * @property {Record<string, number>} sampling options that differ from the server's.
 * @property {string} stop texts, one on each line.
 * @property {string} schema JSON.
 * @property {string} tools JSON.
 * @property {string} toolChoice "auto", "required" or "none".
 * @property {string} more JSON: further fields of a request.
 * @property {boolean} probabilities
 * @property {string} thinking "auto", "on" or "off".
 */

/** @returns {Settings} */
export function usual() {
  return { system: "", sampling: {}, stop: "", schema: "", tools: "", toolChoice: "auto", more: "", probabilities: true, thinking: "auto" };
}

/** @typedef {{name: string, label: string, low: number, high: number, step: number, about: string}} Slider */

/** @type {Slider[]} */
const SLIDERS = [
  { name: "temperature", label: "Temperature", low: 0, high: 2, step: 0.05, about: "0 is always the likeliest token" },
  { name: "top_k", label: "Top k", low: 0, high: 200, step: 1, about: "the k likeliest tokens; 0 for all" },
  { name: "top_p", label: "Top p", low: 0, high: 1, step: 0.01, about: "the likeliest tokens up to this mass" },
  { name: "min_p", label: "Min p", low: 0, high: 1, step: 0.01, about: "tokens of this share of the likeliest" },
  { name: "repetition_penalty", label: "Repetition penalty", low: 0.5, high: 2, step: 0.05, about: "1 for none" },
  { name: "presence_penalty", label: "Presence penalty", low: -2, high: 2, step: 0.1, about: "for tokens that have come" },
  { name: "frequency_penalty", label: "Frequency penalty", low: -2, high: 2, step: 0.1, about: "each time they have come" },
];

const NO_THINKING = { delimited: false, switch: /** @type {string | null} */ (null) };

const NUMBERS = [
  { name: "max_tokens", label: "Most tokens", low: 1, placeholder: "rest of context" },
  { name: "reasoning_budget", label: "Most tokens of thinking", low: 0, placeholder: "no limit" },
  { name: "seed", label: "Seed", low: 0, placeholder: "new each time" },
];

const SCHEMA_EXAMPLE = `{
  "type": "object",
  "properties": {"name": {"type": "string"}},
  "required": ["name"]
}`;
const TOOLS_EXAMPLE = `[{
  "name": "weather",
  "description": "The weather of a city.",
  "parameters": {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"]
  }
}]`;

/** The panel. `onchange` is called after each change of the settings that it shows. */
export class SettingsPanel {
  constructor() {
    this.settings = usual();
    /** @type {Record<string, number>} */
    this.defaults = {};
    this.chats = true;
    this.thinking = NO_THINKING;
    this.onchange = () => {};
    this.form = byId("settings-form");
    this.form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  }

  /**
   * Shows settings.
   * @param {Settings} settings that the panel changes.
   * @param {Record<string, number>} defaults of the server.
   * @param {boolean} chats whether the model has a chat template.
   * @param {{delimited: boolean, switch: string | null}} thinking how it reasons.
   */
  show(settings, defaults, chats, thinking) {
    this.settings = settings;
    this.defaults = defaults;
    this.chats = chats;
    this.thinking = thinking;
    const numbers = NUMBERS.filter(({ name }) => name !== "reasoning_budget" || thinking.delimited || name in settings.sampling);
    this.form.replaceChildren(
      this.#box("system", chats ? "System prompt" : "Text before the first message", 4, chats ? "You are a helpful assistant." : ""),
      group("Sampling", ...SLIDERS.map((each) => this.#slider(each)), ...numbers.map((each) => this.#number(each)), this.#box("stop", "Stop at these texts, one on each line", 2)),
      group("Answer", this.#box("schema", "JSON schema", 5, SCHEMA_EXAMPLE, "The answer is JSON that fits it."), thinking.switch && this.#thinking(), this.#probabilities()),
      chats && group("Tools", this.#box("tools", "Functions", 6, TOOLS_EXAMPLE, "The model may call them; you type what they return."), this.#toolChoice()),
      group("More", this.#box("more", "Further fields of the request", 2, '{"speculate": "lookup"}', "A JSON object; the documentation of the server lists them.")),
      el("button", { type: "button", class: "button wide", onclick: () => this.#reset() }, icon("again"), "Back to the server's settings"),
    );
    this.#mark();
  }

  /** Shows what is wrong, at its field. */
  point(/** @type {SettingError} */ error) {
    const field = this.form.querySelector(`[name="${error.field}"]`);
    this.#mark();
    field?.focus();
  }

  #changed() {
    this.#mark();
    this.onchange();
  }

  #reset() {
    Object.assign(this.settings, usual());
    this.show(this.settings, this.defaults, this.chats, this.thinking);
    this.onchange();
  }

  /** Shows below its field what no request can be made of. */
  #mark() {
    for (const each of this.form.querySelectorAll("[data-fault]")) each.textContent = "";
    for (const each of this.form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
    try {
      options(this.settings, this.thinking);
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      const fault = this.form.querySelector(`[data-fault="${error.field}"]`);
      if (fault) fault.textContent = error.message;
      this.form.querySelector(`[name="${error.field}"]`)?.setAttribute("aria-invalid", "true");
    }
  }

  /**
   * @param {"system" | "stop" | "schema" | "tools" | "more"} name
   * @param {string} label
   * @param {number} rows
   * @param {string} [placeholder]
   * @param {string} [about]
   */
  #box(name, label, rows, placeholder = "", about = "") {
    const plain = name === "system";
    const area = el("textarea", {
      id: `set-${name}`, name, rows, placeholder, spellcheck: plain, class: plain ? "" : "mono", "aria-describedby": `about-${name}`,
      oninput: () => {
        this.settings[name] = area.value;
        this.#changed();
      },
    });
    area.value = this.settings[name];
    return el(
      "div",
      { class: "field" },
      el("label", { for: `set-${name}` }, label),
      area,
      el("p", { class: "about", id: `about-${name}` }, about, " ", el("strong", { class: "fault", "data-fault": name, role: "alert" })),
    );
  }

  /** @param {Slider} slider */
  #slider({ name, label, low, high, step, about }) {
    const { sampling } = this.settings;
    const range = el("input", { type: "range", id: `set-${name}`, name, min: low, max: high, step, "aria-describedby": `about-${name}` });
    const number = el("input", { type: "number", step, "aria-label": `${label}, as a number` });
    const back = el("button", { type: "button", class: "quiet-button", "aria-label": `${label}: the server's` }, icon("again"));
    const draw = () => {
      const value = sampling[name] ?? this.defaults[name] ?? low;
      range.value = String(value);
      number.value = String(Number(value.toFixed(4)));
      back.hidden = !(name in sampling);
      field.classList.toggle("changed", name in sampling);
      range.style.setProperty("--share", String(Math.min(1, Math.max(0, (value - low) / (high - low)))));
    };
    const set = (/** @type {string} */ text) => {
      const value = Number(text);
      if (text === "" || !Number.isFinite(value)) delete sampling[name];
      else sampling[name] = value;
      this.#changed();
    };
    range.addEventListener("input", () => (set(range.value), draw()));
    number.addEventListener("change", () => (set(number.value), draw()));
    back.addEventListener("click", () => (set(""), draw(), range.focus()));
    const field = el(
      "div",
      { class: "field slider" },
      el("label", { for: `set-${name}` }, label),
      range,
      number,
      back,
      el("p", { class: "about", id: `about-${name}` }, about),
    );
    draw();
    return field;
  }

  /** @param {{name: string, label: string, low: number, placeholder: string}} option */
  #number({ name, label, low, placeholder }) {
    const { sampling } = this.settings;
    const input = el("input", { type: "number", id: `set-${name}`, name, min: low, step: 1, placeholder, inputmode: "numeric" });
    input.value = sampling[name] ?? "";
    input.addEventListener("input", () => {
      if (input.value === "") delete sampling[name];
      else sampling[name] = Number(input.value);
      this.#changed();
    });
    return el("div", { class: "field row" }, el("label", { for: `set-${name}` }, label), input);
  }

  #probabilities() {
    const box = el("input", { type: "checkbox", id: "set-probabilities", name: "probabilities", role: "switch" });
    box.checked = this.settings.probabilities;
    box.addEventListener("change", () => {
      this.settings.probabilities = box.checked;
      this.#changed();
    });
    return el("div", { class: "field row" }, el("label", { for: "set-probabilities" }, "Probabilities of the tokens"), box);
  }

  #toolChoice() {
    return this.#choice("toolChoice", "Call them", { auto: "when the model wants to", required: "always", none: "never" });
  }

  #thinking() {
    return this.#choice("thinking", "Thinking", { auto: "as the model does", on: "on", off: "off" });
  }

  /**
   * @param {"toolChoice" | "thinking"} name
   * @param {string} label
   * @param {Record<string, string>} choices
   */
  #choice(name, label, choices) {
    const made = Object.entries(choices).map(([value, text]) => el("option", { value }, text));
    const select = el("select", { id: `set-${name}`, name }, ...made);
    select.value = this.settings[name];
    select.addEventListener("change", () => {
      this.settings[name] = select.value;
      this.#changed();
    });
    return el("div", { class: "field row" }, el("label", { for: `set-${name}` }, label), select);
  }
}

function group(/** @type {string} */ title, /** @type {...any} */ ...fields) {
  return el("fieldset", {}, el("legend", {}, title), ...fields);
}

/** The settings that differ from the server's, in short. @returns {string[]} */
export function inUse(/** @type {Settings} */ settings) {
  const found = [];
  if (settings.system.trim()) found.push("System prompt");
  for (const [name, value] of Object.entries(settings.sampling)) {
    const label = [...SLIDERS, ...NUMBERS].find((each) => each.name === name)?.label ?? name;
    found.push(`${label} ${value}`);
  }
  if (settings.thinking !== "auto") found.push(`Thinking ${settings.thinking}`);
  if (settings.stop) found.push("Stop texts");
  if (settings.schema.trim()) found.push("JSON schema");
  if (settings.tools.trim()) found.push("Tools");
  if (settings.more.trim()) found.push("Further fields");
  return found;
}
