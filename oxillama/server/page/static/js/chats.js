/** Conversations and the answers that are being written: what the page does, without what it shows. */

import { Answer } from "./answer.js";
import { inWords } from "./api.js";
import { requestOf } from "./request.js";
import { usual } from "./settings.js";
import { add, children, find, lineTo, newConversation, remove, shown, titleOf } from "./tree.js";

const SAVE_MILLISECONDS = 1000;
const WAIT_MILLISECONDS = 500;

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
    for (const message of found.messages) if (!this.running.has(id) && message.finish === null) message.finish = "stopped";
    this.open = found;
    this.listener.changed();
    return true;
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
   * @throws {import("./request.js").SettingError} and then nothing has changed.
   */
  send(text, media = []) {
    this.#check();
    const { open } = this;
    const last = shown(open).at(-1);
    if (!open.messages.length && !open.named) open.title = titleOf(text || (media[0]?.name ?? ""));
    const facts = { content: text, ...(media.length ? { media } : {}) };
    const parent = text || media.length ? add(open, last?.id ?? null, { role: "user", ...facts }) : last;
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
    const { role, call, name, media } = message;
    let made = add(this.open, message.parent, { role, call, name, content: text, ...(media ? { media } : {}) });
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
    if (isEmpty && message.error && !children(this.open, message.id).length) remove(this.open, message);
    if (parent) this.#answer(parent);
  }

  /** Goes on with an answer that was stopped. */
  goOn(/** @type {import("./tree.js").Message} */ message) {
    this.#check();
    this.#answer(message, message);
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
    if (this.run) throw new Error("An answer is being written in this conversation.");
    requestOf([], this.open.settings, this.server);
  }

  /**
   * @param {import("./tree.js").Message} last message of the prompt.
   * @param {import("./tree.js").Message} [begun] the same, if it is an answer that goes on.
   */
  async #answer(last, begun) {
    const conversation = this.open;
    const { path, body } = requestOf(lineTo(conversation, last), conversation.settings, this.server, Boolean(begun));
    const message = begun ?? add(conversation, last.id, { role: "assistant", model: this.server.model });
    message.finish = null;
    delete message.error;
    const controller = new AbortController();
    this.running.set(conversation.id, { conversation, message, controller });
    this.changed();
    const answer = new Answer(message);
    let saved = performance.now();
    const waiting = setInterval(() => this.listener.grew(message), WAIT_MILLISECONDS);
    try {
      for await (const event of this.api.stream(path, body, controller.signal)) {
        answer.take(event);
        if (answer.first) clearInterval(waiting);
        this.listener.grew(message);
        if (performance.now() - saved > SAVE_MILLISECONDS) {
          saved = performance.now();
          this.keep(conversation);
        }
      }
    } catch (error) {
      message.finish = "stopped";
      if (!controller.signal.aborted) {
        message.error = inWords(error);
        this.server.failed(error);
      }
    }
    clearInterval(waiting);
    message.finish ??= "stopped";
    this.running.delete(conversation.id);
    conversation.updated = Date.now();
    this.listener.ended(message);
    await this.keep(conversation);
    this.listener.changed();
  }

  /** Stops the answer that is being written; whether there was one. */
  stop() {
    this.run?.controller.abort();
    return Boolean(this.run);
  }

  /** Keeps the open conversation, and shows it. */
  changed() {
    this.listener.changed();
    return this.keep(this.open);
  }

  /** Keeps a conversation, if there is anything in it. */
  async keep(/** @type {import("./tree.js").Conversation} */ conversation) {
    if (!conversation.messages.length) return;
    try {
      await this.store.save(conversation);
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
