/** Models of the hub: found by words, downloaded by the server. */

import { inWords } from "./api.js";
import { el, sizeOf } from "./dom.js";
import { openWindow, toast } from "./notices.js";

/** The window with the search, and the download that runs. */
export class ModelFinder {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./server.js").Server} server
   * @param {(model: string) => void} use a model that the server has.
   */
  constructor(api, server, use) {
    this.api = api;
    this.server = server;
    this.use = use;
    /** @type {{name: string, completed: number, total: number, status: string} | null} */
    this.download = null;
    this.progress = el("div", { class: "download", "aria-live": "off" });
    this.found = el("div", { class: "found" });
    this.repo = "";
    this.turn = 0;
  }

  open() {
    const input = el("input", { type: "search", id: "hub-words", required: true, maxlength: 200, placeholder: "qwen 4b", autocomplete: "off", spellcheck: "false" });
    const form = el("form", { role: "search", class: "row" }, el("label", { for: "hub-words", class: "sr-only" }, "Words of the model's name"), input, el("button", { class: "button main" }, "Search"));
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#search(input.value.trim());
    });
    const about = el("p", { class: "about" }, "Models in the format GGUF, of the Hugging Face Hub. The server downloads them, also when this page is closed.");
    this.dialog = openWindow("Find a model", about, form, this.progress, this.found);
    this.#drawDownload();
    input.focus();
  }

  #search(/** @type {string} */ words) {
    return this.#show(`page/hub?search=${encodeURIComponent(words)}`, ({ repositories }) => {
      if (!repositories.length) return [el("p", {}, "Nothing found.")];
      const entries = repositories.map((/** @type {{name: string, downloads: number}} */ { name, downloads }) => {
        const label = [el("span", { class: "found-name" }, name), el("span", { class: "about" }, `${downloads.toLocaleString("en")} downloads`)];
        return el("li", {}, el("button", { type: "button", class: "button wide", onclick: () => this.#list(name) }, ...label));
      });
      return [el("ul", { "aria-label": "Repositories" }, ...entries)];
    });
  }

  #list(/** @type {string} */ repo) {
    return this.#show(`page/hub?repo=${encodeURIComponent(repo)}`, ({ models }) => {
      this.repo = repo;
      const heading = el("h3", {}, repo);
      if (!models.length) return [heading, el("p", {}, "It has no models in the format GGUF.")];
      return [heading, el("ul", { "aria-label": "Models" }, ...models.map((/** @type {any} */ model) => this.#entry(model)))];
    });
  }

  /** @param {{name: string, bytes: number, is_here: boolean}} model */
  #entry({ name, bytes, is_here: isHere }) {
    const short = name.replace(/^hf:\/\//, "").slice(this.repo.length + 1);
    const act = isHere ? () => (this.use(name), this.dialog?.close()) : () => this.#pull(name);
    const label = isHere ? "Use" : "Download";
    const button = el("button", { type: "button", class: "button", "aria-label": `${label} ${short}`, onclick: act, disabled: !isHere && this.download !== null }, label);
    return el("li", { class: "row" }, el("span", { class: "found-name" }, short), el("span", { class: "about" }, sizeOf(bytes)), button);
  }

  /**
   * Shows what the server tells of the hub, unless something else was asked for meanwhile.
   * @param {string} path
   * @param {(answer: any) => Node[]} draw
   */
  async #show(path, draw) {
    this.turn += 1;
    const { turn } = this;
    this.repo = "";
    this.found.replaceChildren(el("p", { role: "status" }, "The server asks the hub…"));
    let nodes;
    try {
      nodes = draw(await this.api.get(path));
    } catch (error) {
      nodes = [el("p", { class: "fault", role: "alert" }, inWords(error))];
    }
    if (turn === this.turn) this.found.replaceChildren(...nodes);
  }

  async #pull(/** @type {string} */ name) {
    this.download = { name, completed: 0, total: 0, status: "" };
    this.#drawDownload();
    try {
      for await (const { status, completed = 0, total = 0 } of this.api.lines("api/pull", { model: name })) {
        this.download = { name, completed, total, status };
        this.#drawDownload();
      }
      await this.server.refresh();
      toast(`${name} is downloaded.`);
    } catch (error) {
      toast(`${name} was not downloaded. ${inWords(error)}`, "fault");
    }
    this.download = null;
    this.#drawDownload();
    if (this.dialog?.open && this.repo) await this.#list(this.repo);
  }

  #drawDownload() {
    for (const button of this.found.querySelectorAll('[aria-label^="Download"]')) button.disabled = this.download !== null;
    if (!this.download) return this.progress.replaceChildren();
    const { name, completed, total } = this.download;
    const how = total ? `${sizeOf(completed)} of ${sizeOf(total)}` : "waiting for the hub";
    this.progress.replaceChildren(
      el("progress", { max: total || null, value: total ? completed : null, "aria-label": `Download of ${name}` }),
      el("span", {}, `${name}: ${how}`),
    );
  }
}
