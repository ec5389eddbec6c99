/** The box in which messages are written. */

import { byId, el } from "./dom.js";
import { fileView } from "./file_view.js";
import { icon } from "./icons.js";
import { mayRecord, mediumChip, record } from "./media.js";
import { announce } from "./notices.js";

/** Characters of a pasted text that becomes a file. */
const LONG_PASTE = 8000;

/** The box, and its buttons. */
export class Composer {
  /**
   * @param {object} actions
   * @param {(text: string, media: import("./media.js").Medium[], files: {name: string, text: string}[]) => boolean} actions.send tells whether the message was taken.
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
    this.chats = true;
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
      const text = event.clipboardData?.getData("text/plain") ?? "";
      const isLong = this.chats && text.length >= LONG_PASTE;
      if (isLong ? false : !files.length || text) return;
      event.preventDefault();
      this.#attach(isLong ? [new File([text], this.#pastedName(), { type: "text/plain" })] : files);
      if (isLong) announce("The long text is attached as a file.");
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
    const media = this.files.flatMap((file) => file.medium ?? []);
    const files = this.files.filter((file) => !file.medium).map(({ name, text }) => ({ name, text }));
    if (this.actions.send(this.area.value, media, files)) this.put("", [], false);
  }

  #pastedName() {
    const n = this.files.filter(({ name }) => name.startsWith("pasted")).length;
    return n ? `pasted-${n + 1}.txt` : "pasted.txt";
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
      const intoText = () => {
        remove();
        this.area.setRangeText(file.text, this.area.selectionStart, this.area.selectionEnd, "end");
        this.#fit();
      };
      return file.medium ? mediumChip(file.medium, remove) : fileView(file, { remove, intoText });
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

  /**
   * @param {string} text that stands in the box.
   * @param {import("./attachments.js").Attachment[]} [files] beside it.
   * @param {boolean} [focuses] whether the box gets the focus.
   */
  put(text, files = this.files, focuses = true) {
    this.area.value = text;
    this.files = files;
    this.#drawFiles();
    this.#fit();
    if (!focuses) return;
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
    this.chats = chats;
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
