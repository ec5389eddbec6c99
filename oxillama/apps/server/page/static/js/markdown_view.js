/** Markdown on the page. Text becomes text nodes, and links go to http, https and mailto alone. */

import { copyText, el } from "./dom.js";
import { formula } from "./formula.js";
import { highlighted } from "./highlight.js";
import { icon } from "./icons.js";
import { DEEPEST, parse } from "./markdown.js";

const PROTOCOLS = ["http:", "https:", "mailto:"];

/** @type {WeakMap<Node, string>} */
const KEYS = new WeakMap();

/**
 * Draws a text into an element. Blocks that are there already stay as they are.
 * @param {HTMLElement} element
 * @param {string} text
 * @param {boolean} [grows] whether more of it may come.
 */
export function drawMarkdown(element, text, grows = false) {
  const blocks = parse(text, grows);
  let kept = 0;
  while (kept < blocks.length && kept < element.childNodes.length) {
    if (KEYS.get(element.childNodes[kept]) !== blocks[kept].key) break;
    kept += 1;
  }
  while (element.childNodes.length > kept) element.lastChild?.remove();
  for (const { key, tokens } of blocks.slice(kept)) {
    const [made] = views(tokens);
    KEYS.set(made, key);
    element.append(made);
  }
}

/** The nodes that markdown-it's tokens come to. @returns {Node[]} */
function views(/** @type {any[]} */ tokens) {
  const root = document.createDocumentFragment();
  /** @type {any[]} */
  const open = [root];
  for (const token of tokens) {
    const here = open.at(-1);
    if (token.nesting < 0) open.pop();
    else if (token.hidden || (token.nesting > 0 && open.length > DEEPEST)) open.push(here);
    else if (token.type === "inline") here.append(...inside(token.children, here));
    else {
      const made = view(token);
      here.append(made);
      if (token.nesting > 0) open.push(token.type === "table_open" ? made.firstChild : made);
    }
  }
  return [...root.childNodes];
}

/** The nodes of a line; of the first in an item, the box of a task comes before. */
function inside(/** @type {any[]} */ tokens, /** @type {any} */ parent) {
  const item = parent.closest?.("li");
  const task = item && !item.textContent ? /^\[([ xX])\]\s+/.exec(tokens[0]?.content) : null;
  if (!task) return views(tokens);
  tokens[0].content = tokens[0].content.slice(task[0].length);
  item.classList.add("task");
  return [el("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "Task" }), ...views(tokens)];
}

/** The element of a token, without what stands in it. @returns {any} */
function view(/** @type {any} */ token) {
  const { type, tag, content } = token;
  if (type === "text") return document.createTextNode(content);
  if (type === "softbreak") return el("br");
  if (type === "fence" || type === "code_block") return codeView(token.info.trim().split(/\s/)[0], content.replace(/\n$/, ""));
  if (type === "code_inline") return el("code", {}, content);
  if (type === "formula") return formula(content, token.markup);
  if (type === "source") return el("p", { class: "verbatim" }, content);
  if (type === "heading_open") return el(`h${Math.min(Number(tag[1]) + 2, 6)}`);
  if (type === "link_open") return linkView(token.attrGet("href"));
  if (type === "image") return withChildren(linkView(token.attrGet("src")), views(token.children));
  if (type === "s_open") return el("del");
  if (type === "ordered_list_open") return el("ol", { start: token.attrGet("start") ?? 1 });
  if (type === "table_open") return el("div", { class: "table", tabindex: "0" }, el("table"));
  if (tag === "th" || tag === "td") return el(tag, { class: `align-${/\w+$/.exec(token.attrGet("style") ?? "left")}` });
  return el(tag);
}

function withChildren(/** @type {any} */ element, /** @type {Node[]} */ children) {
  element.append(...children);
  return element;
}

/** A link, or only a place for its text if its address is none that is safe to follow. */
function linkView(/** @type {string} */ href) {
  const url = URL.canParse(href) ? new URL(href) : null;
  if (!url || !PROTOCOLS.includes(url.protocol)) return el("span", { class: "no-link", title: href });
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", title: url.href });
}

export function codeView(/** @type {string} */ language, /** @type {string} */ text) {
  const copy = el("button", { type: "button", class: "quiet-button", "aria-label": "Copy the code" }, icon("copy"), "Copy");
  copy.addEventListener("click", async () => {
    await copyText(text);
    copy.replaceChildren(icon("check"), "Copied");
  });
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, language || "text"), copy),
    el("pre", { tabindex: "0" }, el("code", {}, ...highlighted(text, language))),
  );
}
