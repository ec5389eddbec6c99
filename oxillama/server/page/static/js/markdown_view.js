/** Markdown on the page. Text becomes text nodes, and links go to http, https and mailto alone. */

import { copyText, el } from "./dom.js";
import { highlighted } from "./highlight.js";
import { icon } from "./icons.js";
import { parse } from "./markdown.js";

const PROTOCOLS = ["http:", "https:", "mailto:"];

/** @type {WeakMap<Node, string>} */
const SOURCES = new WeakMap();

/** Draws a text into an element. Blocks that are there already stay as they are. */
export function drawMarkdown(/** @type {HTMLElement} */ element, /** @type {string} */ text) {
  const blocks = parse(text);
  let kept = 0;
  while (kept < blocks.length && kept < element.childNodes.length) {
    if (SOURCES.get(element.childNodes[kept]) !== blocks[kept].source) break;
    kept += 1;
  }
  while (element.childNodes.length > kept) element.lastChild?.remove();
  for (const block of blocks.slice(kept)) {
    const made = blockView(block);
    SOURCES.set(made, block.source);
    element.append(made);
  }
}

/** @returns {HTMLElement} */
function blockView(/** @type {import("./markdown.js").Block} */ block) {
  if (block.kind === "heading") return el(`h${Math.min((block.level ?? 1) + 2, 6)}`, {}, ...parts(block.inside));
  if (block.kind === "rule") return el("hr");
  if (block.kind === "quote") return el("blockquote", {}, ...(block.blocks ?? []).map(blockView));
  if (block.kind === "code") return codeView(block.language ?? "", block.text ?? "");
  if (block.kind === "list") return listView(block);
  if (block.kind === "table") return tableView(block);
  return el("p", {}, ...parts(block.inside));
}

/**
 * @param {import("./markdown.js").Inline[]} [inside]
 * @returns {Node[]}
 */
function parts(inside = []) {
  return inside.map((part) => {
    if (part.kind === "text") return document.createTextNode(part.text);
    if (part.kind === "code") return el("code", {}, part.text);
    if (part.kind === "break") return el("br");
    if (part.kind === "link") return linkView(part.href, parts(part.inside));
    return el(part.kind, {}, ...parts(part.inside));
  });
}

/** A link, or only its text if its address is none that is safe to follow. */
function linkView(/** @type {string} */ href, /** @type {Node[]} */ inside) {
  const url = URL.canParse(href) ? new URL(href) : null;
  if (!url || !PROTOCOLS.includes(url.protocol)) return el("span", { class: "no-link", title: href }, ...inside);
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", title: url.href }, ...inside);
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

function listView(/** @type {import("./markdown.js").Block} */ block) {
  const items = (block.items ?? []).map((item) => {
    const inner = item.blocks.flatMap((each) =>
      block.tight && each.kind === "paragraph" ? parts(each.inside) : [blockView(each)],
    );
    if (item.checked === null) return el("li", {}, ...inner);
    const box = el("input", { type: "checkbox", disabled: true, checked: item.checked });
    return el("li", { class: "task" }, box, ...inner);
  });
  return block.ordered ? el("ol", { start: block.start }, ...items) : el("ul", {}, ...items);
}

function tableView(/** @type {import("./markdown.js").Block} */ block) {
  const row = (/** @type {string} */ tag, /** @type {import("./markdown.js").Inline[][]} */ cells) =>
    el("tr", {}, ...cells.map((cell, i) => el(tag, { class: `align-${block.align?.[i]}` }, ...parts(cell))));
  return el(
    "div",
    { class: "table", tabindex: "0" },
    el("table", {}, el("thead", {}, row("th", block.head ?? [])), el("tbody", {}, ...(block.rows ?? []).map((r) => row("td", r)))),
  );
}
