/** Formulas: TeX becomes elements of MathML. Temml makes the tree, and nothing of it but such elements is drawn. */

import { el } from "./dom.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const LONGEST = 5000;
const DEEPEST = 100;
const DEFINES = /\\(?:[egx]?def|let|futurelet|(?:re)?newcommand|providecommand)(?![a-z])/i; // macros can take for ever
const LIMITS = { throwOnError: true, maxExpand: 300, maxSize: [50, 500] };

/**
 * A formula, or its source where it is none that can be drawn.
 * @param {string} tex
 * @param {string} markup its two delimiters in one.
 * @returns {Element}
 */
export function formula(tex, markup) {
  const display = markup === "$$$$" || markup === "\\[\\]";
  try {
    if (tex.length > LONGEST || DEFINES.test(tex)) throw new RangeError("no formula that is drawn");
    const { temml } = /** @type {any} */ (globalThis);
    const made = nodeOf(temml.__renderToMathMLTree(tex, { displayMode: display, ...LIMITS }), 0);
    return display ? el("span", { class: "formula", tabindex: "0" }, made) : /** @type {Element} */ (made);
  } catch {
    const half = markup.length / 2;
    return el("code", { class: "formula-source" }, markup.slice(0, half) + tex + markup.slice(half));
  }
}

/** @returns {Node} */
function nodeOf(/** @type {any} */ tree, /** @type {number} */ depth) {
  if (typeof tree.text === "string") return document.createTextNode(tree.text);
  if (depth > DEEPEST || !/^(m[a-z]+)?$/.test(tree.type ?? "")) throw new RangeError("no formula that is drawn");
  const children = tree.children.map((/** @type {any} */ child) => nodeOf(child, depth + 1));
  const made = /** @type {any} */ (tree.type ? document.createElementNS(MATHML, tree.type) : document.createDocumentFragment());
  made.append(...children);
  if (!tree.type) return made;
  for (const [name, value] of Object.entries(tree.attributes)) if (!/^on|href|src|style/.test(name)) made.setAttribute(name, value);
  if (tree.classes.length) made.setAttribute("class", tree.classes.join(" "));
  if (tree.type === "math") return made; // whose style is the browsers' own
  for (const [name, value] of Object.entries(tree.style)) made.style[name] = value;
  return made;
}
