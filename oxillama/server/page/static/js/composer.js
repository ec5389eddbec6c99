/** The box in which messages are written. */

import { withFiles } from "./attachments.js";
import { byId, el } from "./dom.js";
import { icon } from "./icons.js";
import { mayRecord, mediumView, record } from "./media.js";

/** The box, and its buttons. */
export class Composer {
  /**
   * @param {object} actions
   * @param {(text: string, media: import("./media.js").Medium[]) => boolean} actions.send tells whether the message was taken.
   * @param {(file: File) => Promise<import("./attachments.js").Attachment | null>} actions.read a file; null if it cannot be.
   * @param {(error: unknown) => void} actions.failed a recording was not made.
   * @param {() => void} actions.stop
   * @param {() => void} actions.editLast
   * @param {() => void} actions.settings
   */
  constructor(actions) {
    this.actions = actions;
    this.area = byId("prompt");
    this.send = byId("send");
    this.stop = byId("stop");
    this.form = byId("composer");
    this.mayBeEmpty = false;
    /** @type {import("./attachments.js").Attachment[]} */
    this.files = [];
    /** @type {{stop: () => void, sound: Promise<Blob>} | undefined} */
    this.recording = undefined;
    this.input = byId("attach-file");
    this.photos = byId("photo-file");
    for (const [button, input] of [["attach", this.input], ["photo", this.photos]]) {
      byId(button).addEventListener("click", () => input.click());
      input.addEventListener("change", () => this.#attach([...input.files]));
    }
    byId("record").addEventListener("click", () => this.#record());
    this.area.addEventListener("paste", (/** @type {ClipboardEvent} */ event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length || event.clipboardData?.getData("text/plain")) return;
      event.preventDefault();
      this.#attach(files);
    });
    this.form.addEventListener("dragover", (/** @type {DragEvent} */ event) => event.preventDefault());
    this.form.addEventListener("drop", (/** @type {DragEvent} */ event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.#attach([...event.dataTransfer.files]);
    });
    this.form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#submit();
    });
    this.stop.addEventListener("click", () => {
      actions.stop();
      this.area.focus();
    });
    this.area.addEventListener("input", () => this.#fit());
    window.addEventListener("resize", () => this.#fit());
    this.area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#submit();
      } else if (event.key === "ArrowUp" && !this.area.value) {
        event.preventDefault();
        actions.editLast();
      }
    });
  }

  #submit() {
    if (!this.stop.hidden) return;
    if (!this.area.value.trim() && !this.files.length && !this.mayBeEmpty) return;
    const text = this.files.length ? withFiles(this.area.value, this.files) : this.area.value;
    const media = this.files.flatMap((file) => file.medium ?? []);
    if (!this.actions.send(text, media)) return;
    this.area.value = "";
    this.files = [];
    this.#drawFiles();
    this.#fit();
  }

  async #attach(/** @type {File[]} */ files) {
    this.input.value = this.photos.value = "";
    for (const file of files) {
      const found = await this.actions.read(file);
      if (found) this.files.push(found);
    }
    this.#drawFiles();
    this.area.focus();
  }

  /** Begins a recording, or ends the one that runs and attaches it. */
  async #record() {
    if (this.recording) return this.recording.stop();
    const button = byId("record");
    try {
      this.recording = await record();
      button.setAttribute("aria-pressed", "true");
      const sound = await this.recording.sound;
      await this.#attach([new File([sound], "recording.wav", { type: sound.type })]);
    } catch (error) {
      this.actions.failed(error);
    } finally {
      this.recording = undefined;
      button.setAttribute("aria-pressed", "false");
    }
  }

  #drawFiles() {
    const chips = this.files.map((file) => {
      const remove = () => {
        this.files = this.files.filter((each) => each !== file);
        this.#drawFiles();
        this.area.focus();
      };
      const label = `Remove ${file.name}`;
      return el("button", { type: "button", class: "chip file", "aria-label": label, title: label, onclick: remove }, file.medium ? mediumView(file.medium) : file.name, icon("close"));
    });
    byId("files").replaceChildren(...chips);
    this.#enable();
  }

  #fit() {
    const most = 0.4 * window.innerHeight;
    this.area.style.height = "auto";
    this.area.style.overflowY = this.area.scrollHeight > most ? "auto" : "hidden";
    this.area.style.height = `${Math.min(this.area.scrollHeight, most)}px`;
    this.#enable();
  }

  #enable() {
    this.send.disabled = !this.area.value.trim() && !this.files.length && !this.mayBeEmpty;
  }

  /** @param {string} text that stands in the box. */
  put(text) {
    this.area.value = text;
    this.#fit();
    this.area.focus();
    this.area.setSelectionRange(text.length, text.length);
  }

  /**
   * @param {object} how
   * @param {boolean} how.running whether an answer is being written.
   * @param {boolean} how.chats whether the model has a chat template.
   * @param {boolean} how.goesOn whether an empty text is sent, too: the model goes on.
   * @param {string[]} how.chips settings in use.
   * @param {string[]} how.takes what the model takes beside text.
   */
  show({ running, chats, goesOn, chips, takes }) {
    byId("photo").hidden = !takes.includes("image");
    byId("record").hidden = !takes.includes("audio") || !mayRecord();
    const focused = document.activeElement === this.send || document.activeElement === this.stop;
    this.send.hidden = running;
    this.stop.hidden = !running;
    if (focused) (running ? this.stop : this.send).focus();
    this.mayBeEmpty = goesOn;
    this.area.placeholder = chats ? "Write a message" : goesOn ? "Go on, or add text first" : "Write a beginning";
    const label = goesOn && !chats ? "Go on" : "Send";
    this.send.setAttribute("aria-label", label);
    this.send.title = label;
    this.#enable();
    byId("chips").replaceChildren(
      ...chips.map((text) => el("button", { type: "button", class: "chip", onclick: this.actions.settings }, icon("sliders"), text)),
    );
  }
}
