/** Typed decisions: a text, questions about it, and the probability of each answer as a bar. */

import { inWords } from "./api.js";
import { el } from "./dom.js";
import { icon } from "./icons.js";
import { medium, mediumChip } from "./media.js";
import { openWindow } from "./notices.js";

/** Types of questions: what the box below each asks for; "" for none. */
const TYPES = /** @type {const} */ ({
  predicate: { label: "Yes or no", options: "" },
  choice: { label: "One of several", options: "Answers, one on each line, as “name” or “name: description”" },
  score: { label: "A level", options: "Levels from the lowest to the highest, one on each line" },
});
/** Of the probability of all tokens: less says that the model would rather have said something else. */
const LEAST_MASS = 0.1;

/** @typedef {{type: keyof typeof TYPES, instructions: string, options: string}} Question */

/**
 * A question as the server takes it.
 * @param {Question} question
 */
export function asked({ type, instructions, options }) {
  const lines = options.split("\n").map((line) => line.trim()).filter(Boolean);
  const parts = lines.map((line) => /^([^:]+):\s+(.+)$/.exec(line) ?? [line, line, null]);
  if (type === "choice") return { type, instructions, choices: parts.map(([, value, description]) => ({ value, description })) };
  if (type === "score") return { type, instructions, levels: lines.map((label) => ({ label })) };
  return { type, instructions };
}

/**
 * An input as the server takes it: the text, or one message with the text and the pictures.
 * @param {string} text
 * @param {import("./media.js").Medium[]} pictures
 */
function inputOf(text, pictures) {
  if (!pictures.length) return text;
  const images = pictures.map(({ url }) => ({ type: "input_image", image_url: url }));
  return [{ role: "user", content: [{ type: "input_text", text }, ...images] }];
}

/** The window with the form. What is written in it stays until the page is left. */
export class Decisions {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./server.js").Server} server
   */
  constructor(api, server) {
    this.api = api;
    this.server = server;
    this.state = "";
    /** @type {import("./media.js").Medium[]} */
    this.pictures = [];
    this.chips = el("div", { class: "chips" });
    /** @type {Question[]} */
    this.questions = [{ type: "predicate", instructions: "", options: "" }];
    this.list = el("div", { class: "questions" });
    this.result = el("div", { class: "decided", role: "status" });
  }

  open() {
    const state = el("textarea", { id: "decide-state", rows: 4, required: true, dir: "auto", oninput: () => (this.state = state.value) });
    state.value = this.state;
    const more = el("button", { type: "button", class: "button", onclick: () => this.#add() }, icon("plus"), "Another question");
    const form = el(
      "form",
      { class: "decide", "aria-label": "Questions about a text" },
      el("label", { for: "decide-state" }, "Text"),
      state,
      this.server.takes.includes("image") && this.#pictureField(),
      this.list,
      el("div", { class: "dialog-buttons" }, more, el("button", { class: "button main" }, "Decide")),
    );
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#decide();
    });
    this.#draw();
    openWindow("Typed decisions", form, this.result);
    state.focus();
  }

  #pictureField() {
    const input = el("input", { type: "file", id: "decide-pictures", accept: "image/*", multiple: true });
    input.addEventListener("change", async () => {
      try {
        for (const file of input.files) this.pictures.push(await medium(file, file.name, this.server.takes));
      } catch (error) {
        this.result.replaceChildren(el("p", { class: "fault" }, inWords(error)));
      }
      input.value = "";
      this.#drawPictures();
    });
    this.#drawPictures();
    return el("div", { class: "field" }, el("label", { for: input.id }, "Pictures"), input, this.chips);
  }

  #drawPictures() {
    const chip = (/** @type {import("./media.js").Medium} */ picture) => {
      const remove = () => {
        this.pictures = this.pictures.filter((each) => each !== picture);
        this.#drawPictures();
      };
      return mediumChip(picture, remove);
    };
    this.chips.replaceChildren(...this.pictures.map(chip));
  }

  #add() {
    this.questions.push({ type: "predicate", instructions: "", options: "" });
    this.#draw();
    /** @type {any} */ (this.list.lastChild?.querySelector("input"))?.focus();
  }

  #draw() {
    this.list.replaceChildren(...this.questions.map((question, i) => this.#question(question, i)));
  }

  #question(/** @type {Question} */ question, /** @type {number} */ i) {
    const made = Object.entries(TYPES).map(([value, { label }]) => el("option", { value, selected: value === question.type }, label));
    const select = el("select", { id: `decide-type-${i}`, "aria-label": `Type of question ${i + 1}` }, ...made);
    const input = el("input", { type: "text", id: `decide-question-${i}`, required: true, placeholder: "Is the writer angry?", oninput: () => (question.instructions = input.value) });
    input.value = question.instructions;
    const area = el("textarea", { id: `decide-options-${i}`, rows: 3, oninput: () => (question.options = area.value) });
    area.value = question.options;
    const label = el("label", { for: `decide-options-${i}` });
    const field = el("div", { class: "field" }, label, area);
    const show = () => {
      label.textContent = TYPES[question.type].options;
      field.hidden = !label.textContent;
      area.required = !field.hidden;
    };
    select.addEventListener("change", () => {
      question.type = select.value;
      show();
    });
    show();
    const remove = () => {
      this.questions.splice(i, 1);
      this.#draw();
    };
    return el(
      "fieldset",
      {},
      el("legend", {}, `Question ${i + 1}`),
      el("div", { class: "row" }, el("label", { for: input.id, class: "sr-only" }, `Question ${i + 1}`), input, select, this.questions.length > 1 && el("button", { type: "button", class: "icon-button", "aria-label": `Remove question ${i + 1}`, onclick: remove }, icon("trash"))),
      field,
    );
  }

  async #decide() {
    const questions = this.questions.map((question) => asked(question));
    const input = inputOf(this.state, this.server.takes.includes("image") ? this.pictures : []);
    this.result.replaceChildren(el("p", {}, "The model decides…"));
    try {
      const answer = await this.api.post("v1/decisions", { model: this.server.model, input, questions });
      this.result.replaceChildren(...answer.answers.map((/** @type {any} */ each, /** @type {number} */ i) => decided(questions[i].instructions, each)));
    } catch (error) {
      this.result.replaceChildren(el("p", { class: "fault" }, inWords(error)));
    }
  }
}

/** The answer to a question: a bar for each allowed answer. @returns {HTMLElement} */
export function decided(/** @type {string} */ instructions, /** @type {any} */ answer) {
  const { type, probability, probabilities = [], score, x_label_mass: mass } = answer;
  const shares = type === "predicate"
    ? [["Yes", probability], ["No", 1 - probability]]
    : probabilities.map((/** @type {any} */ { label, value, probability: share }) => [label ?? String(value), share]);
  const most = Math.max(...shares.map((/** @type {any} */ [, share]) => share));
  const rows = shares.map((/** @type {[string, number]} */ [name, share]) => {
    const text = `${(100 * share).toFixed(1)}%`;
    const bar = el("meter", { min: 0, max: 1, value: share, "aria-label": `${name}: ${text}` });
    return el("tr", { class: share === most ? "taken" : "" }, el("th", { scope: "row" }, name), el("td", {}, bar), el("td", {}, text));
  });
  return el(
    "section",
    { "aria-label": instructions },
    el("h3", {}, instructions),
    el("table", { class: "shares" }, el("tbody", {}, ...rows)),
    type === "score" && el("p", { class: "about" }, `Mean level ${score.toFixed(2)}, of 0 to ${shares.length - 1}.`),
    mass < LEAST_MASS && el("p", { class: "about" }, `The model would rather have said something else: these answers have ${(100 * mass).toFixed(1)}% of the probability.`),
  );
}
