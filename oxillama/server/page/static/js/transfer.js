/** Conversations as files: JSON that can be read back, and Markdown for people. */

import { el } from "./dom.js";
import { usual } from "./settings.js";
import { VERSION, shown } from "./tree.js";

const FORMAT = "oxillama-conversations";
const ROLES = ["user", "assistant", "tool"];
const NAMES = { user: "You", assistant: "Answer", tool: "Result" };

/** A file, or what the browser kept, is no conversation. */
export class FormatError extends Error {}

/** @returns {string} */
export function asJson(/** @type {import("./tree.js").Conversation[]} */ conversations) {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

/** The conversations of a file. @returns {import("./tree.js").Conversation[]} */
export function fromJson(/** @type {string} */ text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new FormatError(`file: expected JSON, got ${error instanceof Error ? error.message : error}`);
  }
  if (found?.format !== FORMAT) throw new FormatError(`file: expected the format ${FORMAT}, got ${found?.format ?? "none"}`);
  if (!Array.isArray(found.conversations)) throw new FormatError("conversations: expected a list");
  return found.conversations.map((/** @type {any} */ each, /** @type {number} */ i) => check(each, `conversations[${i}]`));
}

/**
 * A conversation that was checked, with the settings that it does not have.
 * @returns {import("./tree.js").Conversation}
 */
export function check(/** @type {any} */ value, /** @type {string} */ where) {
  const wrong = (/** @type {string} */ name, /** @type {string} */ expected, /** @type {unknown} */ got) =>
    new FormatError(`${where}.${name}: expected ${expected}, got ${String(JSON.stringify(got)).slice(0, 80)}`);
  if (typeof value !== "object" || value === null) throw new FormatError(`${where}: expected an object`);
  if (value.version !== VERSION) throw wrong("version", String(VERSION), value.version);
  for (const name of ["id", "title"]) if (typeof value[name] !== "string") throw wrong(name, "a text", value[name]);
  for (const name of ["created", "updated"])
    if (!Number.isFinite(value[name])) throw wrong(name, "milliseconds", value[name]);
  if (!Array.isArray(value.messages)) throw wrong("messages", "a list", value.messages);
  const ids = new Set();
  value.messages.forEach((/** @type {any} */ message, /** @type {number} */ i) => {
    const at = `messages[${i}]`;
    if (typeof message?.id !== "string" || ids.has(message.id)) throw wrong(`${at}.id`, "an id of its own", message?.id);
    if (!ROLES.includes(message.role)) throw wrong(`${at}.role`, ROLES.join(", "), message.role);
    if (typeof message.content !== "string") throw wrong(`${at}.content`, "a text", message.content);
    if (message.parent !== null && !ids.has(message.parent)) throw wrong(`${at}.parent`, "an earlier message", message.parent);
    if (!isListOf(message.calls, (call) => typeof call?.name === "string" && typeof call.arguments === "string"))
      throw wrong(`${at}.calls`, "calls", message.calls);
    if (!isListOf(message.tokens, (token) => typeof token?.text === "string" && Array.isArray(token.top)))
      throw wrong(`${at}.tokens`, "tokens", message.tokens);
    for (const name of ["reasoning", "error", "name", "model", "call"])
      if (message[name] !== undefined && typeof message[name] !== "string") throw wrong(`${at}.${name}`, "a text", message[name]);
    if (message.finish !== undefined && message.finish !== null && typeof message.finish !== "string")
      throw wrong(`${at}.finish`, "a text or null", message.finish);
    if (message.stats !== undefined && (typeof message.stats !== "object" || message.stats === null))
      throw wrong(`${at}.stats`, "numbers", message.stats);
    ids.add(message.id);
  });
  // what is shown is found along `chosen`: each must name a child, so that the line has an end
  const parents = new Map(value.messages.map((/** @type {any} */ message) => [message.id, message.parent]));
  const isChild = (/** @type {unknown} */ id, /** @type {string | null} */ parent) =>
    id === undefined || id === null || (typeof id === "string" && parents.get(id) === parent);
  if (!isChild(value.chosen, null)) throw wrong("chosen", "a first message", value.chosen);
  value.messages.forEach((/** @type {any} */ message, /** @type {number} */ i) => {
    if (!isChild(message.chosen, message.id)) throw wrong(`messages[${i}].chosen`, "a message below this one", message.chosen);
  });
  const settings = { ...usual(), ...value.settings };
  for (const [name, mine] of Object.entries(usual()))
    if (typeof settings[name] !== typeof mine || settings[name] === null) throw wrong(`settings.${name}`, `a ${typeof mine}`, settings[name]);
  return { ...value, settings };
}

/**
 * @param {unknown} list undefined for none.
 * @param {(item: any) => boolean} fits
 */
function isListOf(list, fits) {
  return list === undefined || (Array.isArray(list) && list.every(fits));
}

/** The line of a conversation that is shown. @returns {string} */
export function asMarkdown(/** @type {import("./tree.js").Conversation} */ conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.settings.system.trim()) parts.push(`**System**\n\n${conversation.settings.system.trim()}`);
  for (const message of shown(conversation)) {
    const model = message.role === "assistant" && message.model ? ` (${message.model})` : "";
    const texts = [`## ${NAMES[message.role]}${message.name ? ` of ${message.name}` : model}`];
    if (message.reasoning) texts.push(message.reasoning.trim().replace(/^/gm, "> "));
    if (message.content) texts.push(message.content.trim());
    for (const call of message.calls ?? []) texts.push(`\`\`\`json\n${call.name}(${call.arguments})\n\`\`\``);
    parts.push(texts.join("\n\n"));
  }
  return `${parts.join("\n\n")}\n`;
}

/** Gives the user a file. */
export function download(/** @type {string} */ name, /** @type {string} */ type, /** @type {string} */ text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** A name for a file. */
export function fileName(/** @type {string} */ title, /** @type {string} */ suffix) {
  return `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation"}.${suffix}`;
}
