/** A file of a message as a chip: its name shows its text. */

import { languageOf } from "./attachments.js";
import { el } from "./dom.js";
import { icon } from "./icons.js";
import { codeView } from "./markdown_view.js";
import { ask } from "./notices.js";

/** Characters of a file that are shown. */
const LONGEST = 100_000;

/**
 * @param {{name: string, text: string}} file
 * @param {{remove: () => void, intoText: () => void}} [actions] in the box in which messages are written.
 * @returns {HTMLElement}
 */
export function fileView(file, actions) {
  const show = async () => {
    const text = file.text.length > LONGEST ? `${file.text.slice(0, LONGEST)}…` : file.text;
    const buttons = [{ value: "", label: "Close" }, ...(actions ? [{ value: "text", label: "Put it into the text" }] : [])];
    if ((await ask(file.name, [codeView(languageOf(file.name), text)], buttons)) === "text") actions?.intoText();
  };
  return el(
    "span",
    { class: "chip file" },
    el("button", { type: "button", class: "chip-button", title: `Show ${file.name}`, onclick: show }, icon("clip"), el("span", {}, file.name)),
    actions && el("button", { type: "button", class: "chip-button", "aria-label": `Remove ${file.name}`, title: `Remove ${file.name}`, onclick: actions.remove }, icon("close")),
  );
}
