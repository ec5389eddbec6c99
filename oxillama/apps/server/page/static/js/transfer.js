/** Conversations as files: JSON that can be read back, and Markdown for people. */

import { textOf } from "./attachments.js";
import { el } from "./dom.js";
import { usual } from "./settings.js";
import { VERSION, shown } from "./tree.js";

const FORMAT = "oxillama-conversations";
const ROLES = ["user", "assistant", "tool"];
const MOST_MESSAGES = 10_000;
/** Of a title, an id or a name. */
const MOST_CHARACTERS = 1000;
/** What a picture or sound is kept as. */
const DATA = /^data:[\w./+-]*;base64,[A-Za-z0-9+/=]*$/;
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

/** @typedef {[expected: string, fits: (value: any) => boolean]} Kind */

const isText = (/** @type {unknown} */ value) => typeof value === "string";
const isShort = (/** @type {any} */ value) => isText(value) && value.length <= MOST_CHARACTERS;
const isNumber = (/** @type {unknown} */ value) => typeof value === "number";
const isLogprob = (/** @type {unknown} */ value) => value === null || isNumber(value);
const isObject = (/** @type {unknown} */ value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isNumbers = (/** @type {any} */ value) => isObject(value) && Object.values(value).every(isNumber);
const isListOf = (/** @type {any} */ list, /** @type {(item: any) => boolean} */ fits) => Array.isArray(list) && list.every(fits);
const isCall = (/** @type {any} */ call) => isText(call?.id) && isShort(call.name) && isText(call.arguments);
const isPair = (/** @type {any} */ pair) => Array.isArray(pair) && isText(pair[0]) && isLogprob(pair[1]);
const isToken = (/** @type {any} */ token) => isText(token?.text) && isLogprob(token.logprob) && isListOf(token.top, isPair);

const isMedium = (/** @type {any} */ item) =>
  ["image", "audio"].includes(item?.kind) && isShort(item.name) && isText(item.url) && DATA.test(item.url);

const isFile = (/** @type {any} */ file) => isShort(file?.name) && isText(file.text);

/** Fields of a message that it need not have. @type {Record<string, Kind>} */
const OPTIONAL = {
  created: ["milliseconds", isNumber],
  changed: ["milliseconds", isNumber],
  reasoning: ["a text", isText],
  media: ["pictures and sounds", (value) => isListOf(value, isMedium)],
  files: ["files with a name and a text", (value) => isListOf(value, isFile)],
  error: ["a text", isText],
  help: ["a short text", isShort],
  name: ["a short text", isShort],
  model: ["a short text", isShort],
  call: ["a short text", isShort],
  finish: ["a short text or null", (value) => value === null || isShort(value)],
  calls: ["calls", (value) => isListOf(value, isCall)],
  tokens: ["tokens", (value) => isListOf(value, isToken)],
  stats: ["numbers", isNumbers],
};

/**
 * A conversation that was checked: its known fields alone, with the settings that it does not have.
 * @returns {import("./tree.js").Conversation}
 */
export function check(/** @type {any} */ value, /** @type {string} */ where) {
  const need = (/** @type {string} */ name, /** @type {string} */ expected, /** @type {unknown} */ got, /** @type {boolean} */ fits) => {
    if (fits) return;
    const shown = typeof got === "object" && got !== null ? "another" : String(JSON.stringify(got)).slice(0, 80);
    throw new FormatError(`${where}.${name}: expected ${expected}, got ${shown}`);
  };
  if (!isObject(value)) throw new FormatError(`${where}: expected an object`);
  const { id, version, title, named, created, updated, changed = created, chosen = null } = value;
  need("version", String(VERSION), version, version === VERSION);
  need("id", "letters and digits", id, isShort(id) && /^[\w-]+$/.test(id));
  need("title", "a short text", title, isShort(title));
  for (const [name, time] of Object.entries({ created, updated, changed })) need(name, "milliseconds", time, isNumber(time));
  need("messages", `a list of at most ${MOST_MESSAGES}`, value.messages, Array.isArray(value.messages) && value.messages.length <= MOST_MESSAGES);
  /** @type {Map<string, string | null>} */
  const parents = new Map();
  const messages = value.messages.map((/** @type {any} */ message, /** @type {number} */ i) => {
    const at = `messages[${i}]`;
    need(`${at}.id`, "an id of its own", message?.id, isShort(message?.id) && !parents.has(message.id));
    need(`${at}.role`, ROLES.join(", "), message.role, ROLES.includes(message.role));
    need(`${at}.content`, "a text", message.content, isText(message.content));
    need(`${at}.parent`, "an earlier message", message.parent, message.parent === null || parents.has(message.parent));
    parents.set(message.id, message.parent);
    const { role, content, parent } = message;
    const made = { id: message.id, role, content, parent, chosen: message.chosen ?? null };
    for (const [name, [expected, fits]] of Object.entries(OPTIONAL)) {
      if (message[name] === undefined) continue;
      need(`${at}.${name}`, expected, message[name], fits(message[name]));
      Object.assign(made, { [name]: message[name] });
    }
    return made;
  });
  // what is shown is found along `chosen`: each must name a child, so that the line has an end
  const isChild = (/** @type {any} */ child, /** @type {string | null} */ parent) => child === null || parents.get(child) === parent;
  need("chosen", "a first message", chosen, isChild(chosen, null));
  for (const [i, { id: parent, chosen: child }] of messages.entries())
    need(`messages[${i}].chosen`, "a message below this one", child, isChild(child, parent));
  /** @type {Record<string, any>} */
  const settings = usual();
  for (const [name, mine] of Object.entries(settings)) {
    const given = value.settings?.[name];
    if (given === undefined) continue;
    need(`settings.${name}`, `a ${typeof mine}`, given, name === "sampling" ? isNumbers(given) : typeof given === typeof mine);
    settings[name] = given;
  }
  return { id, version, title, named: Boolean(named), created, updated, changed, chosen, messages, settings: /** @type {any} */ (settings) };
}

/** The line of a conversation that is shown. @returns {string} */
export function asMarkdown(/** @type {import("./tree.js").Conversation} */ conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.settings.system.trim()) parts.push(`**System**\n\n${conversation.settings.system.trim()}`);
  for (const message of shown(conversation)) {
    const model = message.role === "assistant" && message.model ? ` (${message.model})` : "";
    const texts = [`## ${NAMES[message.role]}${message.name ? ` of ${message.name}` : model}`];
    if (message.reasoning) texts.push(message.reasoning.trim().replace(/^/gm, "> "));
    for (const { name } of message.media ?? []) texts.push(`*${name}*`);
    const text = textOf(message).trim();
    if (text) texts.push(text);
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
