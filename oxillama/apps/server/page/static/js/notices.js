/** Short messages, for the eye and for screen readers, and questions. */

import { byId, el } from "./dom.js";
import { icon } from "./icons.js";

/** Says something to those who do not see the page. */
export function announce(/** @type {string} */ text) {
  byId("live").textContent = text;
}

/**
 * A message in a corner, until it is closed or some seconds have passed.
 * @param {string} text
 * @param {"plain" | "fault"} [kind]
 */
export function toast(text, kind = "plain") {
  const made = el("div", { class: `toast ${kind}`, role: kind === "fault" ? "alert" : "status" }, text);
  const close = el("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => made.remove() }, icon("close"));
  made.append(close);
  byId("toasts").append(made);
  setTimeout(() => made.remove(), 8000);
}

/**
 * A dialog; the value of the button that closes it, "" if it was dismissed.
 * @param {string} title
 * @param {any[]} content
 * @param {{value: string, label: string, kind?: string}[]} buttons the first one is meant by Enter.
 * @returns {Promise<string>}
 */
export function ask(title, content, buttons) {
  const made = buttons.map(({ value, label, kind }) => el("button", { value, class: `button ${kind ?? ""}` }, label));
  const form = el("form", { method: "dialog" }, el("h2", {}, title), ...content, el("div", { class: "dialog-buttons" }, ...made));
  const dialog = el("dialog", { "aria-label": title }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(dialog.returnValue);
    });
  });
}

/**
 * A window over the page, until it is closed.
 * @param {string} title
 * @param {...any} content
 * @returns {HTMLDialogElement}
 */
export function openWindow(title, ...content) {
  const close = el("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"));
  const dialog = el("dialog", { class: "window", "aria-label": title }, el("div", { class: "window-head" }, el("h2", {}, title), close), ...content);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * Asks for the API key of the server.
 * @param {boolean} wrong whether there was one, which the server refused.
 * @returns {Promise<{key: string, forGood: boolean} | null>} null if the user gives none.
 */
export async function askForKey(wrong) {
  const input = el("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const box = el("input", { type: "checkbox", id: "key-keep" });
  const content = [
    el("p", {}, wrong ? "The server does not know this API key." : "This server answers only to those who have an API key."),
    el("label", { for: "key" }, "API key"),
    input,
    el("label", { class: "check", for: "key-keep" }, box, "Keep it in this browser when the tab is closed"),
  ];
  const buttons = [
    { value: "use", label: "Use this key", kind: "main" },
  ];
  const found = await ask("API key", content, buttons);
  return found === "use" && input.value ? { key: input.value.trim(), forGood: box.checked } : null;
}

const KEYS = [
  ["Enter", "send the message"],
  ["Shift + Enter", "a new line"],
  ["Esc", "stop the answer, close a panel"],
  ["Arrow up, in an empty box", "edit the last message"],
  ["/", "go to the message box"],
  ["Ctrl + Shift + O", "new conversation"],
  ["Ctrl + K", "search the conversations"],
  ["Ctrl + ,", "settings"],
  ["?", "this list"],
];

/** Lists the shortcuts. */
export function showKeys() {
  const rows = KEYS.map(([keys, meaning]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, keys)), el("td", {}, meaning)));
  return ask("Keyboard", [el("table", { class: "keys" }, el("tbody", {}, ...rows))], [{ value: "", label: "Close" }]);
}
