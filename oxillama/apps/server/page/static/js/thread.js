/** The messages that are shown, drawn once a frame at most, and the place in them that is seen. */

import { byId, el } from "./dom.js";
import { MessageView } from "./message_view.js";
import { shown, versions } from "./tree.js";

const NEAR = 60;
/** After a drawing nothing is drawn for so many times as long as it took: a quarter of the time at most is spent on it. */
const REST = 3;

/** The line of a conversation. */
export class Thread {
  constructor(/** @type {import("./message_view.js").Actions} */ actions) {
    this.actions = actions;
    this.element = byId("thread");
    this.scroller = byId("scroller");
    this.toEnd = byId("to-end");
    /** @type {Map<string, MessageView>} */
    this.views = new Map();
    this.timer = 0;
    this.next = 0;
    this.follows = true;
    this.top = 0;
    this.box = "";
    this.ondraw = () => {};
    /** @type {Set<import("./tree.js").Message>} */
    this.stale = new Set();
    this.scroller.addEventListener("scroll", () => {
      if (this.#isResized() && this.follows) return this.end(); // the box has changed, not the place in it
      const before = this.top, { scrollTop, scrollHeight, clientHeight } = this.scroller;
      this.top = scrollTop;
      // The event comes a frame late: a message that has grown since then is no reason to stop following.
      this.follows = scrollHeight - scrollTop - clientHeight < NEAR || (this.follows && scrollTop >= before);
      this.toEnd.hidden = this.follows;
    });
    this.toEnd.addEventListener("click", () => this.end());
    const observer = new ResizeObserver(() => {
      this.#isResized();
      if (this.follows && !this.element.querySelector("form.edit")) this.end();
    });
    for (const each of [this.element, this.scroller]) observer.observe(each);
  }

  /** Whether the box around the messages has another size than when this was last asked. */
  #isResized() {
    const before = this.box;
    this.box = `${this.scroller.clientWidth} ${this.scroller.clientHeight}`;
    return this.box !== before;
  }

  /**
   * Shows a conversation.
   * @param {import("./tree.js").Conversation} conversation
   * @param {string} running id of the message that is being written; "" for none.
   * @param {boolean} plain whether texts are no Markdown.
   * @param {HTMLElement} empty what stands there without messages.
   */
  show(conversation, running, plain, empty) {
    const line = shown(conversation);
    /** @type {Map<string, MessageView>} */
    const views = new Map();
    line.forEach((message, i) => {
      const place = {
        versions: versions(conversation, message),
        running: message.id === running,
        last: i === line.length - 1,
        plain,
      };
      const known = this.views.get(message.id);
      if (known && known.message === message && known.place.plain === plain) {
        known.show(place);
        if (!place.running) this.stale.delete(message);
        views.set(message.id, known);
      } else views.set(message.id, new MessageView(message, place, this.actions));
    });
    this.views = views;
    const wanted = line.length ? [...views.values()].map((view) => view.element) : [empty];
    const kept = new Set(wanted);
    for (const each of [...this.element.children]) if (!kept.has(each)) each.remove();
    wanted.forEach((each, i) => {
      if (this.element.children[i] !== each) this.element.insertBefore(each, this.element.children[i] ?? null);
    });
  }

  /** Draws a message again with the next frame, or later if drawing takes long. Its end is drawn at once, by `show`. */
  update(/** @type {import("./tree.js").Message} */ message) {
    this.stale.add(message);
    this.timer ||= setTimeout(() => requestAnimationFrame(() => this.#draw()), Math.max(0, this.next - performance.now()));
  }

  #draw() {
    this.timer = 0;
    const began = performance.now();
    for (const each of this.stale) this.views.get(each.id)?.draw();
    this.stale.clear();
    this.ondraw();
    void this.scroller.scrollHeight; // the layout is a part of it
    const now = performance.now();
    this.next = now + REST * (now - began);
  }

  /** Goes to the end, and follows it. */
  end() {
    this.follows = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
    this.toEnd.hidden = true;
  }

  /** Edits the last message of the user. */
  editLast() {
    const last = [...this.views.values()].filter((view) => view.message.role === "user").at(-1);
    last?.edit();
  }
}

const CHATS = [
  "Explain how a rainbow forms, in three sentences.",
  "Write a Python function that finds the primes below n.",
  "Compare tea and coffee in a table.",
  "Plan a rainy Sunday for a family of four.",
];
const BEGINNINGS = [
  "Once upon a time, there was a little fox named",
  "On the island, there lived a brave",
  "This is the story of Tom, a tiny dragon who lived in the lighthouse.",
  "Mia and the Golden Drum\n\n",
];

/** What stands where no message is. @returns {HTMLElement} */
export function welcome(/** @type {import("./server.js").Server} */ server, /** @type {(text: string) => void} */ use) {
  const texts = server.chats && !server.tellsStories ? CHATS : BEGINNINGS;
  const mark = el("img", { src: new URL("../icon.svg", import.meta.url).href, alt: "", width: 56, height: 56 });
  const what = {
    connecting: ["Connecting…", ""],
    loading: ["The model is being loaded", "The page is ready as soon as the model is."],
    gone: ["The server does not answer", "The page looks for it every few seconds. Conversations are kept in this browser."],
    failed: ["The model cannot be used", server.reason],
    locked: ["The server asks for an API key", ""],
    ready: server.tellsStories
      ? ["How does it begin?", "This model tells stories: a message is a title or a beginning, the answer is the rest."]
      : server.onlyDecides
      ? ["What shall be decided?", "This model answers typed questions about a text: the button with the scales asks them."]
      : server.chats
      ? ["What shall we talk about?", "The model runs on this server alone. Conversations stay in this browser."]
      : ["How does it begin?", "This model has no chat template: it goes on from your text."],
  }[server.state];
  return el(
    "div",
    { class: "welcome" },
    mark,
    el("h2", {}, what[0]),
    el("p", {}, what[1]),
    server.state === "ready" &&
      !server.onlyDecides &&
      el("div", { class: "suggestions" }, ...texts.map((text) => el("button", { type: "button", class: "suggestion", onclick: () => use(text) }, text.trim()))),
  );
}
