/** Files that go into a message: texts, pictures and sounds are read here, PDFs by the server. */

import { ServerError } from "./api.js";
import { AttachmentError, kindOf, medium } from "./media.js";

const LARGEST = 1_000_000;

/** @typedef {{name: string, text: string, medium?: import("./media.js").Medium}} Attachment */

/**
 * The text of a file, or the picture or sound that it is.
 * @param {File} file
 * @param {import("./api.js").Api} api
 * @param {string[]} takes what the model takes beside text.
 * @returns {Promise<Attachment>}
 */
export async function attachment(file, api, takes) {
  const name = file.name.replace(/[^\p{L}\p{N}\p{P} _+=-]|`/gu, "").slice(0, 200) || "file";
  if (kindOf(file)) return { name, text: "", medium: await medium(file, name, takes) };
  const isPdf = file.type === "application/pdf" || /\.pdf$/i.test(name);
  if (!isPdf && file.size > LARGEST) throw tooLarge(name, file.size);
  const text = isPdf ? await pdfText(name, file, api) : await plainText(name, file);
  if (!text.trim()) throw new AttachmentError(`${name} is empty.`);
  if (text.length > LARGEST) throw tooLarge(name, text.length);
  return { name, text };
}

function tooLarge(/** @type {string} */ name, /** @type {number} */ n) {
  return new AttachmentError(`${name} has ${(n / 1e6).toFixed(1)} MB of text; a message takes up to ${LARGEST / 1e6} MB of a file.`);
}

async function plainText(/** @type {string} */ name, /** @type {File} */ file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // told below
  }
  throw new AttachmentError(`${name} is neither text (UTF-8) nor a PDF.`);
}

async function pdfText(/** @type {string} */ name, /** @type {File} */ file, /** @type {import("./api.js").Api} */ api) {
  try {
    return (await api.send("page/pdf", file, "application/pdf")).text;
  } catch (error) {
    throw error instanceof ServerError ? new AttachmentError(`${name} was not read. ${error.message}`) : error;
  }
}

/** The text of a message with its files behind it, each as a block of code below its name. @returns {string} */
export function textOf(/** @type {Pick<import("./tree.js").Message, "content" | "files">} */ { content, files }) {
  if (!files?.length) return content;
  const blocks = files.map(({ name, text }) => {
    let fence = "```";
    while (text.includes(fence)) fence += "`";
    return `${name}:\n\n${fence}${languageOf(name)}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [content, ...blocks].filter((part) => part.trim()).join("\n\n");
}

/** The language of a file, by the end of its name; "" for none. The text of a PDF is in none. @returns {string} */
export function languageOf(/** @type {string} */ name) {
  const suffix = /\.(\w{1,10})$/.exec(name)?.[1] ?? "";
  return suffix === "pdf" ? "" : suffix;
}
