/** Making elements. Text always becomes text nodes: nothing here, or anywhere on the page, parses markup. */

/**
 * @typedef {Node | string | null | undefined | false} Child
 */

/**
 * An element. Names that begin with "on" are listeners, `class` is the class, true sets a bare attribute; null,
 * undefined and false leave an attribute out.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Child} children
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child || child === "") made.append(child);
  return made;
}

/** A number of bytes, in words. */
export function sizeOf(/** @type {number} */ bytes) {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** The element of the page with this id. @returns {any} */
export function byId(/** @type {string} */ id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element with the id ${id}`);
  return found;
}

/**
 * A random id. `crypto.randomUUID` is missing on pages that come over plain HTTP from another machine.
 * @returns {string}
 */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return "c" + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Puts text on the clipboard, also where the browser has no clipboard for insecure pages. */
export async function copyText(/** @type {string} */ text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "sr-only", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
