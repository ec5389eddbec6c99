/** Tools of the server's MCP servers: offered to the model, and run when the user allows it. */

import { inWords } from "./api.js";
import { byId, el } from "./dom.js";
import { keep, recall } from "./store.js";
import { shown } from "./tree.js";

const MOST_UNASKED = 8; // calls behind one message of the user
const LONG = 160; // characters of a result
const AGAIN = 1000; // milliseconds until servers that have not listed their tools are asked again
const REFUSED = "The user refused the call.";

/**
 * @typedef {object} Tool
 * @property {string} name that the model calls.
 * @property {string} server
 * @property {string} own_name
 * @property {string} description
 * @property {object} parameters
 * @property {string | null} refused why it cannot be used.
 * @property {string} digest changes with the tool.
 */

/** The tools, which of them are offered, and what the user has allowed. */
export class ServedTools {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./server.js").Server} server gets the definitions of the tools that are offered.
   */
  constructor(api, server) {
    this.api = api;
    this.server = server;
    /** @type {Tool[]} */
    this.tools = [];
    /** @type {{name: string, failure: string | null, is_listing: boolean}[]} */
    this.servers = [];
    this.timer = 0;
    this.known = "";
    this.off = new Set(recall("tools-off").split(" "));
    /** @type {Map<string, Set<string>>} digests of tools by the id of a conversation. */
    this.allowed = new Map();
    /** @type {WeakMap<object, Promise<string>>} results of calls that have begun. */
    this.results = new WeakMap();
    this.panel = el("section", { class: "served-tools", "aria-label": "Tools of servers" });
    byId("settings").append(this.panel);
    let state = "";
    server.addEventListener("change", () => {
      if (server.state === "ready" && state !== "ready") this.refresh();
      state = server.state;
    });
  }

  /** Asks the server for its tools, and again while one of its MCP servers is slow to list them. */
  async refresh() {
    clearTimeout(this.timer);
    try {
      ({ tools: this.tools, servers: this.servers } = await this.api.get("mcp/tools"));
    } catch {
      return; // which the next request says better
    }
    if (this.servers.some((each) => each.is_listing)) {
      clearTimeout(this.timer); // of a call that was as fast
      this.timer = setTimeout(() => this.refresh(), AGAIN);
    }
    this.#offer();
    const known = JSON.stringify([this.tools, this.servers]);
    if (known === this.known) return; // a box keeps the focus
    this.known = known;
    this.panel.replaceChildren(...(this.servers.length ? [this.#list()] : []));
  }

  /** Has requests offer the tools that can be used and are not switched off. */
  #offer() {
    const offered = this.tools.filter(({ name, refused }) => refused === null && !this.off.has(name));
    this.server.tools = offered.map(({ name, description, parameters }) => ({ type: "function", function: { name, description, parameters } }));
  }

  #list() {
    const failed = this.servers.filter((each) => each.failure !== null);
    return el(
      "fieldset",
      {},
      el("legend", {}, "Tools of servers"),
      ...failed.map(({ name, failure }) => el("p", { class: "about" }, el("strong", {}, name), ` ${failure}`)),
      ...this.tools.map((tool) => this.#row(tool)),
    );
  }

  #row(/** @type {Tool} */ tool) {
    const about = el("p", { class: "about" }, tool.refused === null ? tool.description.slice(0, 300) : `Cannot be used: ${tool.refused}`);
    if (tool.refused !== null) return el("div", { class: "field" }, el("code", {}, tool.name), about);
    const box = el("input", { type: "checkbox" });
    box.checked = !this.off.has(tool.name);
    box.addEventListener("change", () => {
      if (box.checked) this.off.delete(tool.name);
      else this.off.add(tool.name);
      keep("tools-off", [...this.off].filter(Boolean).join(" "));
      this.#offer();
    });
    return el("div", { class: "field" }, el("label", { class: "check" }, box, el("code", {}, tool.name)), about);
  }

  /**
   * What stands below a call of such a tool in the place of the box for its result; undefined for another call.
   * @param {import("./tree.js").Call} call
   * @param {HTMLTextAreaElement} area takes the result. When all boxes of its form have theirs, they are sent.
   * @param {import("./tree.js").Conversation} conversation
   */
  offer(call, area, conversation) {
    const tool = this.tools.find(({ name, refused }) => name === call.name && refused === null);
    if (!tool) return undefined;
    area.hidden = true;
    const status = el("p", { class: "about", role: "status" }, `The tool ${tool.own_name} of ${tool.server}`);
    const allowed = this.allowed.get(conversation.id) ?? new Set();
    const run = () => {
      buttons.remove();
      status.textContent = "The tool runs …";
      fill(this.#result(call, tool));
    };
    const fill = async (/** @type {Promise<string>} */ result) => {
      area.value = await result;
      area.dataset.done = "yes";
      status.textContent = "The tool has ended.";
      const areas = [...(area.form?.querySelectorAll("textarea") ?? [])];
      if (area.form?.isConnected && areas.every((each) => each.dataset.done)) area.form.requestSubmit();
    };
    const always = () => {
      this.allowed.set(conversation.id, allowed.add(tool.digest));
      run();
    };
    const deny = () => {
      buttons.remove();
      const refusal = Promise.resolve(REFUSED);
      this.results.set(call, refusal);
      fill(refusal);
    };
    const buttons = el(
      "div",
      { class: "call-buttons" },
      el("button", { type: "button", class: "button main", onclick: run }, "Allow once"),
      el("button", { type: "button", class: "button", onclick: always }, "Always in this conversation"),
      el("button", { type: "button", class: "button", onclick: deny }, "Deny"),
    );
    queueMicrotask(() => {
      const areas = [...(area.form?.querySelectorAll("textarea") ?? [])];
      const send = area.form?.querySelector(":scope > .button");
      if (send instanceof HTMLElement) send.hidden = areas.every((each) => each.hidden);
      if (this.results.has(call) || (allowed.has(tool.digest) && unasked(conversation) < MOST_UNASKED)) run();
    });
    return el("div", { class: "offer" }, status, buttons);
  }

  /** The text that comes of a call, which runs once. */
  #result(/** @type {import("./tree.js").Call} */ call, /** @type {Tool} */ tool) {
    const known = this.results.get(call) ?? this.#run(call, tool);
    this.results.set(call, known);
    return known;
  }

  async #run(/** @type {import("./tree.js").Call} */ call, /** @type {Tool} */ tool) {
    try {
      const body = { name: tool.name, arguments: JSON.parse(call.arguments || "{}"), digest: tool.digest };
      return (await this.api.post("mcp/call", body)).content;
    } catch (error) {
      await this.refresh();
      return `Error: ${inWords(error)}`;
    }
  }
}

/** The number of results behind the last message of the user. */
function unasked(/** @type {import("./tree.js").Conversation} */ conversation) {
  const line = shown(conversation);
  const last = line.findLastIndex((message) => message.role === "user");
  return line.slice(last).filter((message) => message.role === "tool").length;
}

/** A result: folded, if it is long. @returns {any[]} */
export function folded(/** @type {string} */ content, /** @type {any[]} */ nodes) {
  if (content.length <= LONG) return nodes;
  const first = content.trim().split("\n")[0].slice(0, 80);
  return [el("details", { class: "result" }, el("summary", {}, `${first} … (${content.length.toLocaleString("en")} characters)`), ...nodes)];
}
