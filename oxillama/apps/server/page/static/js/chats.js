/** Conversations and the answers that are being written: what the page does, without what it shows. */

import { Answer } from "./answer.js";
import { helpFor, inWords } from "./api.js";
import { requestOf } from "./request.js";
import { usual } from "./settings.js";
import { add, children, find, lineTo, merge, newConversation, shown, titleOf, touch } from "./tree.js";

const SAVE_MILLISECONDS = 1000;
/** Between two saves of a text that grows are so many times the milliseconds that the last one took. */
const SAVE_REST = 10;
const WAIT_MILLISECONDS = 500;
/** After which a tab that tells nothing writes no more. Browsers let timers of hidden tabs run once a minute. */
const SILENT_MILLISECONDS = 90_000;

/**
 * What has changed.
 * @typedef {object} Listener
 * @property {() => void} changed the conversation that is open, or which one it is.
 * @property {(message: import("./tree.js").Message) => void} grew
 * @property {(message: import("./tree.js").Message) => void} ended
 * @property {() => void} kept the list of conversations.
 * @property {(text: string) => void} failed something could not be kept or read.
 */

/** The conversation that is open, and the answers that run, one for each conversation at most. */
export class Chats {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./api.js").Api} api
   * @param {import("./server.js").Server} server
   * @param {Listener} listener
   */
  constructor(store, api, server, listener) {
    this.store = store;
    this.api = api;
    this.server = server;
    this.listener = listener;
    this.open = newConversation(usual());
    /** @type {Map<string, {conversation: import("./tree.js").Conversation, message: import("./tree.js").Message, controller: AbortController}>} */
    this.running = new Map();
    /** @type {Map<string, {message: string, timer: number}>} answers that other tabs write, by their conversations. */
    this.elsewhere = new Map();
    this.leaving = false;
    store.onnews = (news) => this.#hear(news);
  }

  /** The id of the message that is being written in the open conversation, here or in another tab; "" for none. */
  get writing() {
    return this.run?.message.id ?? this.elsewhere.get(this.open.id)?.message ?? "";
  }

  /** The answer that is being written in the open conversation. */
  get run() {
    return this.running.get(this.open.id);
  }

  /** Begins a conversation, with the settings of the one that is open. */
  begin() {
    this.open = newConversation(this.open.settings);
    this.listener.changed();
  }

  /** Opens a conversation; whether there is one. */
  async show(/** @type {string} */ id) {
    const found = this.running.get(id)?.conversation ?? (await this.#load(id));
    if (!found) return false;
    this.open = found;
    this.#settle(found);
    this.listener.changed();
    return true;
  }

  /** Marks answers as stopped that nobody writes. */
  #settle(/** @type {import("./tree.js").Conversation} */ { id, messages }) {
    if (this.running.has(id) || this.elsewhere.has(id)) return;
    for (const message of messages) if (message.finish === null) message.finish = "stopped";
  }

  /** Takes in what another tab tells. */
  async #hear(/** @type {import("./store.js").News} */ { id, kept, writing, stops }) {
    if (stops) this.running.get(id)?.controller.abort();
    if (kept) await this.#absorb(id);
    if (writing === undefined) return;
    const before = this.elsewhere.get(id);
    clearTimeout(before?.timer);
    const forget = () => {
      this.elsewhere.delete(id);
      if (id === this.open.id) this.#settle(this.open);
      this.listener.changed();
    };
    if (!writing) return before && forget();
    this.elsewhere.set(id, { message: writing, timer: setTimeout(forget, SILENT_MILLISECONDS) });
    if (before?.message !== writing) this.listener.changed();
  }

  /** Takes in what another tab has kept of a conversation, or that it has deleted it. */
  async #absorb(/** @type {string} */ id) {
    this.listener.kept();
    const run = this.running.get(id);
    const mine = run?.conversation ?? this.open;
    if (mine.id !== id || !this.store.keeps) return;
    let theirs;
    try {
      theirs = await this.store.load(id);
    } catch (error) {
      this.listener.failed(`The conversation cannot be read: ${inWords(error)}`);
      return;
    }
    if (theirs) {
      if (!merge(mine, theirs)) return;
      this.#settle(mine);
      this.listener.changed();
    } else if (this.store.kept.has(mine)) {
      mine.messages = []; // which is then not kept again
      run?.controller.abort();
      if (mine === this.open) this.begin();
    }
  }

  /** A conversation that the browser keeps; undefined if there is none, or if it cannot be read. */
  async #load(/** @type {string} */ id) {
    try {
      return await this.store.load(id);
    } catch (error) {
      this.listener.failed(`The conversation cannot be read: ${inWords(error)}`);
      return undefined;
    }
  }

  /**
   * Sends a message of the user, behind the last one.
   * @param {string} text "" to go on without one.
   * @param {import("./media.js").Medium[]} [media] of the message.
   * @param {{name: string, text: string}[]} [files] of the message.
   * @throws {import("./request.js").SettingError} and then nothing has changed.
   */
  send(text, media = [], files = []) {
    this.#check();
    const { open } = this;
    const last = shown(open).at(-1);
    if (!open.messages.length && !open.named) open.title = titleOf(text.trim() || ([...files, ...media][0]?.name ?? ""));
    const facts = { content: text, ...(media.length ? { media } : {}), ...(files.length ? { files } : {}) };
    const parent = text || media.length || files.length ? add(open, last?.id ?? null, { role: "user", ...facts }) : last;
    if (parent) this.#answer(parent);
  }

  /** Adds another version of a message, and an answer to it where it is not an answer itself. */
  edit(/** @type {import("./tree.js").Message} */ message, /** @type {string} */ text) {
    if (message.role === "assistant") {
      add(this.open, message.parent, { role: "assistant", content: text, model: message.model, finish: "edited" });
      this.changed();
      return;
    }
    this.#check();
    const { role, call, name, media, files } = message;
    let made = add(this.open, message.parent, { role, call, name, content: text, ...(media ? { media } : {}), ...(files ? { files } : {}) });
    if (role === "tool") made = this.#otherResults(message, made);
    else if (message.parent === null && !this.open.named) this.open.title = titleOf(text);
    this.#answer(made);
  }

  /** Copies the results of the other calls of the same message, which stand behind one that was changed. */
  #otherResults(/** @type {import("./tree.js").Message} */ old, /** @type {import("./tree.js").Message} */ made) {
    let next = find(this.open, old.chosen);
    for (; next?.role === "tool"; next = find(this.open, next.chosen)) {
      const { role, call, name, content } = next;
      made = add(this.open, made.id, { role, call, name, content });
    }
    return made;
  }

  /** Writes another answer. One that failed before its first token is replaced. */
  again(/** @type {import("./tree.js").Message} */ message) {
    this.#check();
    const parent = find(this.open, message.parent);
    const isEmpty = !message.content && !message.reasoning && !message.calls?.length;
    const isReplaced = isEmpty && message.error && !children(this.open, message.id).length;
    if (isReplaced) {
      Object.assign(message, { created: Date.now(), model: this.server.model });
      delete message.stats;
    }
    if (parent) this.#answer(parent, isReplaced ? message : undefined);
  }

  /** Goes on with an answer that was stopped. */
  goOn(/** @type {import("./tree.js").Message} */ message) {
    this.#check();
    this.#answer(message, message, true);
  }

  /** Gives the results of a message's calls. */
  answer(/** @type {import("./tree.js").Message} */ message, /** @type {string[]} */ results) {
    this.#check();
    let parent = message;
    (message.calls ?? []).forEach(({ id, name }, i) => {
      parent = add(this.open, parent.id, { role: "tool", call: id, name, content: results[i] ?? "" });
    });
    this.#answer(parent);
  }

  /** Raises SettingError if no request can be made; nothing runs in a conversation that is being written. */
  #check() {
    if (this.writing) throw new Error("An answer is being written in this conversation.");
    requestOf([], this.open.settings, this.server);
  }

  /**
   * @param {import("./tree.js").Message} last message of the prompt.
   * @param {import("./tree.js").Message} [begun] that is written; a new one without it.
   * @param {boolean} [goesOn] whether that is the last message of the prompt, an answer that goes on.
   */
  async #answer(last, begun, goesOn = false) {
    const conversation = this.open;
    const { path, body } = requestOf(lineTo(conversation, last), conversation.settings, this.server, goesOn);
    const message = begun ?? add(conversation, last.id, { role: "assistant", model: this.server.model });
    message.finish = null;
    delete message.error;
    delete message.help;
    touch(message);
    const { id } = conversation;
    const controller = new AbortController();
    this.running.set(id, { conversation, message, controller });
    this.store.tell({ id, writing: message.id });
    this.changed();
    const answer = new Answer(message);
    let next = performance.now() + SAVE_MILLISECONDS;
    const save = async () => {
      const began = performance.now();
      next = Infinity;
      await this.keep(conversation);
      this.store.tell({ id, writing: this.running.has(id) ? message.id : "" });
      const now = performance.now();
      next = now + Math.max(SAVE_MILLISECONDS, SAVE_REST * (now - began));
    };
    const waiting = setInterval(() => {
      this.store.tell({ id, writing: message.id });
      this.listener.grew(message);
    }, WAIT_MILLISECONDS);
    try {
      for await (const event of this.api.stream(path, body, controller.signal)) {
        answer.take(event);
        touch(message);
        if (answer.first) clearInterval(waiting);
        this.listener.grew(message);
        if (performance.now() > next) save();
      }
    } catch (error) {
      message.finish = "stopped";
      if (!controller.signal.aborted && !this.leaving) {
        message.error = inWords(error);
        message.help = helpFor(error);
        this.server.failed(error);
      }
    }
    clearInterval(waiting);
    message.finish ??= "stopped";
    touch(message);
    this.running.delete(id);
    conversation.updated = Date.now();
    this.listener.ended(message);
    await this.keep(conversation);
    this.store.tell({ id, writing: "" });
    this.listener.changed();
  }

  /** Stops the answer that is being written, here or in another tab; whether there was one. */
  stop() {
    const { writing } = this;
    if (this.run) this.run.controller.abort();
    else if (writing) this.store.tell({ id: this.open.id, stops: true });
    return Boolean(writing);
  }

  /** Ends and keeps what is being written, as the page is left. */
  leave() {
    for (const { conversation, message, controller } of this.running.values()) {
      message.finish = "stopped";
      touch(message);
      controller.abort();
      this.store.saveAtOnce(conversation);
    }
  }

  /** Keeps the open conversation, which was changed here, and shows it. */
  changed() {
    touch(this.open);
    this.listener.changed();
    return this.keep(this.open);
  }

  /** Keeps a conversation, if there is anything in it. */
  async keep(/** @type {import("./tree.js").Conversation} */ conversation) {
    if (!conversation.messages.length) return;
    try {
      if (await this.store.save(conversation)) this.listener.changed();
    } catch (error) {
      this.listener.failed(`The browser could not keep the conversation: ${inWords(error)}`);
    }
    this.listener.kept();
  }

  async rename(/** @type {string} */ id, /** @type {string} */ title) {
    const found = id === this.open.id ? this.open : (this.running.get(id)?.conversation ?? (await this.#load(id)));
    if (!found) return;
    found.title = title;
    found.named = true;
    touch(found);
    await this.keep(found);
    this.listener.changed();
  }

  async remove(/** @type {string} */ id) {
    const run = this.running.get(id);
    if (run) {
      run.conversation.messages = []; // which is then not kept again
      run.controller.abort();
    }
    await this.store.remove(id);
    if (id === this.open.id) this.begin();
    this.listener.kept();
  }
}
