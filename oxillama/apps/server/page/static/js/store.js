/**
 * What the browser keeps: conversations in IndexedDB, a few choices in localStorage. Nothing leaves the browser
 * but in requests to the server.
 */

import { textOf } from "./attachments.js";
import { check } from "./transfer.js";
import { merge } from "./tree.js";

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
  return { id, title, updated, text: messages.map(textOf).join("\n").toLowerCase() };
}

/**
 * What tabs tell each other about a conversation.
 * @typedef {object} News
 * @property {string} id of the conversation.
 * @property {boolean} [kept] whether it was kept anew, or deleted.
 * @property {string} [writing] id of the message that the tab writes; "" for none any more.
 * @property {boolean} [stops] whether the tab that writes shall stop.
 */

/** Conversations; what other tabs tell of them comes to `onnews`. */
export class Store {
  /** @param {IDBDatabase | null} database null to keep them in memory. */
  constructor(database) {
    this.database = database;
    /** @type {Map<string, import("./tree.js").Conversation>} */
    this.memory = new Map();
    /** @type {WeakSet<import("./tree.js").Conversation>} that are in the database, unless another tab has deleted them. */
    this.kept = new WeakSet();
    /** @type {(news: News) => void} */
    this.onnews = () => {};
    this.channel = new BroadcastChannel(DATABASE);
    this.channel.onmessage = ({ data }) => this.onnews(data);
  }

  /** Tells the other tabs. */
  tell(/** @type {News} */ news) {
    this.channel.postMessage(news);
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
    if (!found) return undefined;
    const checked = check(found, "conversation");
    this.kept.add(checked);
    return checked;
  }

  /** @returns {Promise<import("./tree.js").Conversation[]>} */
  async all() {
    if (!this.database) return [...this.memory.values()];
    return result(this.database.transaction("conversations").objectStore("conversations").getAll());
  }

  /**
   * Keeps a conversation, which takes in what other tabs have kept of it.
   * @param {import("./tree.js").Conversation} conversation
   * @returns {Promise<boolean>} whether there was any.
   */
  async save(conversation) {
    const { id } = conversation;
    if (!this.database) this.memory.set(id, conversation);
    /** @type {unknown} */
    let fault;
    let came = false;
    const put = (/** @type {IDBObjectStore} */ conversations, /** @type {IDBObjectStore} */ summaries) => {
      const asked = conversations.get(id);
      asked.onsuccess = () => {
        try {
          if (asked.result) came = merge(conversation, check(asked.result, "conversation"));
          else if (this.kept.has(conversation)) throw new Error("It was deleted in another tab.");
          putBoth(conversation, conversations, summaries);
        } catch (error) {
          fault = error;
          asked.transaction?.abort();
        }
      };
    };
    try {
      await this.#write(put);
    } catch (error) {
      throw fault ?? error;
    }
    this.kept.add(conversation);
    this.tell({ id, kept: true });
    return came;
  }

  /** Keeps a conversation as it is here, while the page is left: what reads first would not come to its end. */
  saveAtOnce(/** @type {import("./tree.js").Conversation} */ conversation) {
    this.#write((conversations, summaries) => {
      putBoth(conversation, conversations, summaries);
      conversations.transaction.commit();
    }).catch(() => {}); // nobody is there to be told
    this.tell({ id: conversation.id, kept: true, writing: "" });
  }

  async remove(/** @type {string} */ id) {
    this.memory.delete(id);
    await this.#write((conversations, summaries) => {
      conversations.delete(id);
      summaries.delete(id);
    });
    this.tell({ id, kept: true });
  }

  async #write(/** @type {(conversations: IDBObjectStore, summaries: IDBObjectStore) => void} */ job) {
    if (!this.database) return;
    const transaction = this.database.transaction(["conversations", "summaries"], "readwrite");
    job(transaction.objectStore("conversations"), transaction.objectStore("summaries"));
    await new Promise((done, failed) => {
      transaction.oncomplete = done;
      transaction.onabort = transaction.onerror = () => failed(transaction.error);
    });
  }
}

function putBoth(/** @type {import("./tree.js").Conversation} */ conversation, /** @type {IDBObjectStore} */ conversations, /** @type {IDBObjectStore} */ summaries) {
  conversations.put(conversation);
  summaries.put(summaryOf(conversation));
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
