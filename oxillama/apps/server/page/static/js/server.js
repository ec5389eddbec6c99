/** What is known of the server: its models, whether it is there, and what it asks for. */

import { ConnectionLost, ServerError, inWords } from "./api.js";

const AGAIN = { loading: 1000, gone: 3000 };

/** @typedef {"connecting" | "ready" | "loading" | "locked" | "gone" | "failed"} State */

/**
 * Tells "change" when a fact changes.
 */
export class Server extends EventTarget {
  constructor(/** @type {import("./api.js").Api} */ api) {
    super();
    this.api = api;
    /** @type {State} */
    this.state = "connecting";
    /** @type {any[]} */
    this.models = [];
    this.model = "";
    this.chats = true;
    this.mayPull = false; // models of the hub
    /** @type {object[]} */
    this.tools = []; // of its MCP servers, as requests have them
    this.tellsStories = false; // and answers nothing else: the model that the package ships
    /** @type {{delimited: boolean, switch: string | null}} how the model reasons. */
    this.thinking = { delimited: false, switch: null };
    /** @type {Record<string, any>} */
    this.defaults = {};
    this.timer = 0;
    this.turn = 0;
    this.reason = "";
    this.known = "";
  }

  /** The card of the model in use. */
  get card() {
    return this.models.find((each) => each.id === this.model);
  }

  /** Whether the model in use does nothing but decide. */
  get onlyDecides() {
    return Boolean(this.card?.architecture?.output_modalities?.includes("decisions"));
  }

  /** What the model in use takes beside text: "image", "audio". @returns {string[]} */
  get takes() {
    return this.chats ? (this.card?.architecture?.input_modalities ?? []) : [];
  }

  /**
   * Asks the server for its models, and for the facts of the one in use, which is loaded for that. What an earlier
   * call learns meanwhile counts no more.
   */
  async refresh() {
    clearTimeout(this.timer);
    this.turn += 1;
    const { turn } = this;
    try {
      await this.#askForModels();
      if (turn !== this.turn) return;
      if (!this.card?.meta) this.#be("loading");
      clearTimeout(this.timer);
      const props = await this.#props();
      if (!this.card?.meta) await this.#askForModels();
      if (turn !== this.turn) return;
      this.chats = Boolean(props.chat_template);
      this.mayPull = Boolean(props.may_pull);
      this.tellsStories = this.chats && props.chat_template.includes("the beginning of a story");
      this.thinking = props.thinking ?? { delimited: false, switch: null };
      this.defaults = props.default_generation_settings.params;
      this.#be("ready");
    } catch (error) {
      if (turn === this.turn) this.failed(error);
    }
  }

  /** The facts of the model in use. */
  async #props() {
    const path = this.models.length > 1 ? `props?model=${encodeURIComponent(this.model)}` : "props";
    try {
      return await this.api.get(path);
    } catch (error) {
      if (!(error instanceof ServerError) || error.code !== "not_loaded") throw error;
      await this.api.post("tokenize", { model: this.model, content: "" }); // a GET loads no model
      return this.api.get(path);
    }
  }

  async #askForModels() {
    this.models = (await this.api.get("v1/models")).data;
    if (!this.card) this.model = this.models[0]?.id ?? "";
  }

  /** Uses another model. */
  async use(/** @type {string} */ model) {
    this.model = model;
    this.#be("connecting");
    await this.refresh();
  }

  /** Draws the consequences of an error of a request. */
  failed(/** @type {unknown} */ error) {
    if (error instanceof ServerError && error.status === 401) this.#be("locked");
    else if (error instanceof ServerError && error.code === "loading") this.#be("loading");
    else if (error instanceof ConnectionLost || (error instanceof ServerError && error.code === "shutting_down")) this.#be("gone");
    else if (this.state !== "ready") {
      this.reason = inWords(error);
      this.#be("failed");
    }
  }

  #be(/** @type {State} */ state) {
    clearTimeout(this.timer);
    if (state === "loading" || state === "gone") this.timer = setTimeout(() => this.refresh(), AGAIN[state]);
    const facts = JSON.stringify([state, this.reason, this.model, this.chats, this.mayPull, this.thinking, this.defaults, this.models]);
    this.state = state;
    if (facts === this.known) return;
    this.known = facts;
    this.dispatchEvent(new Event("change"));
  }
}
