/** The tokens of an answer, coloured by their probability; the likeliest others are shown at the one pointed at. */

import { el } from "./dom.js";

const encoder = new TextEncoder();

/** The bytes that a token's name stands for. @returns {Uint8Array} */
export function bytesOf(/** @type {string} */ name) {
  const hex = /^bytes:((?:\\x[0-9a-f]{2})+)$/.exec(name);
  if (!hex) return encoder.encode(name);
  return Uint8Array.from(hex[1].slice(2).split("\\x"), (pair) => parseInt(pair, 16));
}

/**
 * The text of each token. A character of several tokens is that of the last.
 * @param {import("./tree.js").Token[]} tokens
 * @param {number} length of the answer, in UTF-16 units; tokens behind it, ends and stop texts, are left out.
 * @returns {{token: import("./tree.js").Token, text: string}[]}
 */
export function pieces(tokens, length) {
  const decoder = new TextDecoder();
  const found = [];
  let left = length;
  for (const token of tokens) {
    if (left <= 0) break;
    const piece = decoder.decode(bytesOf(token.text), { stream: true }).slice(0, left);
    left -= piece.length;
    found.push({ token, text: piece });
  }
  return found;
}

export function percent(/** @type {number} */ logprob) {
  const share = 100 * Math.exp(logprob);
  if (share >= 99.95) return "100%";
  return share >= 0.1 ? `${share.toFixed(1)}%` : "<0.1%";
}

/**
 * An element with the tokens: hover, tap, or go through them with the arrow keys.
 * @param {import("./tree.js").Token[]} tokens
 * @param {number} length of the answer.
 * @returns {HTMLElement}
 */
export function tokensView(tokens, length) {
  const tip = el("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });
  const spans = pieces(tokens, length).map(({ token, text: piece }) => {
    const level = Math.min(9, Math.floor(10 * Math.exp(token.logprob)));
    const made = el("span", { class: `token p${level}`, tabindex: "-1" }, piece || "·");
    made.addEventListener("pointerenter", () => point(made, token));
    made.addEventListener("focus", () => point(made, token));
    return made;
  });
  const view = el("div", { class: "tokens", role: "group", "aria-label": "Tokens with their probabilities; arrow keys go through them" }, ...spans, tip);
  if (spans.length) spans[0].tabIndex = 0;

  function point(/** @type {HTMLElement} */ span, /** @type {import("./tree.js").Token} */ token) {
    for (const each of spans) {
      each.removeAttribute("aria-describedby");
      each.classList.toggle("pointed", each === span);
    }
    const rows = token.top.map(([name, logprob]) => row(name, logprob, name === token.text));
    if (!token.top.some(([name]) => name === token.text)) rows.push(row(token.text, token.logprob, true));
    tip.replaceChildren(el("table", {}, el("tbody", {}, ...rows)));
    tip.hidden = false;
    const [outer, inner] = [view.getBoundingClientRect(), span.getClientRects()[0]];
    if (!inner) return;
    const left = Math.max(0, Math.min(inner.left - outer.left, outer.width - tip.offsetWidth));
    tip.style.left = `${left}px`;
    tip.style.top = `${inner.bottom - outer.top + 6}px`;
    span.setAttribute("aria-describedby", "tip");
  }

  view.addEventListener("pointerleave", () => {
    tip.hidden = true;
    for (const each of spans) each.classList.remove("pointed");
  });
  view.addEventListener("focusout", () => (tip.hidden = true));
  view.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key] ?? 0;
    const now = spans.indexOf(/** @type {any} */ (document.activeElement));
    if (!step || now < 0) return;
    event.preventDefault();
    const next = spans[Math.max(0, Math.min(spans.length - 1, now + step))];
    spans[now].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  return view;
}

/** A token of the list, with a bar. */
function row(/** @type {string} */ name, /** @type {number} */ logprob, /** @type {boolean} */ taken) {
  const bar = el("span", { class: "bar" });
  bar.style.width = `${Math.max(1, 100 * Math.exp(logprob))}%`;
  return el(
    "tr",
    { class: taken ? "taken" : "" },
    el("th", { scope: "row" }, name.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(nothing)"),
    el("td", {}, percent(logprob)),
    el("td", { class: "bars", "aria-hidden": "true" }, bar),
  );
}
