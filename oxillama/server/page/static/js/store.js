/**
 * What the browser keeps: conversations in IndexedDB, a few choices in localStorage. Nothing leaves the browser
 * but in requests to the server.
 */

import { check } from "./transfer.js";

const DATABASE = "oxillama";
const LAYOUT = 1;

/**
 * What the list of conversations shows and searches.
 * @typedef {{id: string, title: string, updated: number, text: string}} Summary
 */

/**
 * @param {import("./tree.js").Conversation} conversation
 * @returns {Summary}
 */
function summaryOf({ id, title, updated, messages }) {
  return { id, title, updated, text: messages.map((message) => message.content).join("\n").toLowerCase() };
}

/** Conversations; those of other tabs are told by `onchange`. */
export class Store {
  /** @param {IDBDatabase | null} database null to keep them in memory. */
  constructor(database) {
    this.database = database;
    /** @type {Map<string, import("./tree.js").Conversation>} */
    this.memory = new Map();
    /** @type {(id: string) => void} */
    this.onchange = () => {};
    this.channel = new BroadcastChannel(DATABASE);
    this.channel.onmessage = ({ data }) => this.onchange(data);
  }

  /** Whether conversations are there when the page is opened again. */
  get keeps() {
    return this.database !== null;
  }

  /** @returns {Promise<Summary[]>} the last changed first. */
  async summaries() {
    /** @type {Summary[]} */
    const found = this.database
      ? await result(this.database.transaction("summaries").objectStore("summaries").getAll())
      : [...this.memory.values()].map(summaryOf);
    return found.sort((a, b) => b.updated - a.updated);
  }

  /** @returns {Promise<import("./tree.js").Conversation | undefined>} */
  async load(/** @type {string} */ id) {
    if (!this.database) return this.memory.get(id);
    const found = await result(this.database.transaction("conversations").objectStore("conversations").get(id));
    return found && check(found, "conversation");
  }

  /** @returns {Promise<import("./tree.js").Conversation[]>} */
  async all() {
    if (!this.database) return [...this.memory.values()];
    return result(this.database.transaction("conversations").objectStore("conversations").getAll());
  }

  async save(/** @type {import("./tree.js").Conversation} */ conversation) {
    if (!this.database) this.memory.set(conversation.id, conversation);
    await this.#write((conversations, summaries) => {
      conversations.put(conversation);
      summaries.put(summaryOf(conversation));
    });
    this.channel.postMessage(conversation.id);
  }

  async remove(/** @type {string} */ id) {
    this.memory.delete(id);
    await this.#write((conversations, summaries) => {
      conversations.delete(id);
      summaries.delete(id);
    });
    this.channel.postMessage(id);
  }

  async #write(/** @type {(conversations: IDBObjectStore, summaries: IDBObjectStore) => void} */ job) {
    if (!this.database) return;
    const transaction = this.database.transaction(["conversations", "summaries"], "readwrite");
    job(transaction.objectStore("conversations"), transaction.objectStore("summaries"));
    transaction.commit();
    await new Promise((done, failed) => {
      transaction.oncomplete = done;
      transaction.onabort = transaction.onerror = () => failed(transaction.error);
    });
  }
}

/**
 * The store; in memory where the browser gives none.
 * @returns {Promise<Store>}
 */
export async function openStore() {
  try {
    const request = indexedDB.open(DATABASE, LAYOUT);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("summaries", { keyPath: "id" });
    };
    return new Store(await result(request));
  } catch {
    return new Store(null);
  }
}

/** @returns {Promise<any>} */
function result(/** @type {IDBRequest} */ request) {
  return new Promise((done, failed) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}

/** A choice that is kept; "" for none. @returns {string} */
export function recall(/** @type {string} */ name) {
  try {
    return localStorage.getItem(`oxillama.${name}`) ?? sessionStorage.getItem(`oxillama.${name}`) ?? "";
  } catch {
    return "";
  }
}

/**
 * Keeps a choice; until the tab is closed, unless it is for good.
 * @param {string} name
 * @param {string} value
 * @param {boolean} [forGood]
 */
export function keep(name, value, forGood = true) {
  try {
    localStorage.removeItem(`oxillama.${name}`);
    sessionStorage.removeItem(`oxillama.${name}`);
    if (value) (forGood ? localStorage : sessionStorage).setItem(`oxillama.${name}`, value);
  } catch {
    // A browser that keeps nothing: the choice holds for this page.
  }
}
