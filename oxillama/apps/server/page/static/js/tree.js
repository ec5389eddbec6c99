/**
 * A conversation is a tree of messages. What is shown is one line through it: below each message the child
 * that was chosen last. An edit or another answer is a sibling; nothing is overwritten.
 */

import { newId } from "./dom.js";

export const VERSION = 1;

/**
 * @typedef {object} Token
 * @property {string} text of the token, or "bytes:\x.." for bytes that are no text by themselves.
 * @property {number} logprob
 * @property {[string, number][]} top the likeliest tokens and their log-probabilities.
 */

/**
 * @typedef {object} Call
 * @property {string} id
 * @property {string} name
 * @property {string} arguments as JSON, as far as it has come.
 */

/**
 * @typedef {object} Stats
 * @property {number} tokens that were written.
 * @property {number} [prompt] tokens of the prompt.
 * @property {number} [cached] tokens of the prompt that were known already.
 * @property {number} [first] seconds to the first token.
 * @property {number} [thought] seconds until the reasoning ended.
 * @property {number} [rate] tokens a second after the first.
 * @property {number} [promptRate] tokens of the prompt a second, of those that were run.
 * @property {number} [used] tokens of prompt and answer together.
 */

/**
 * @typedef {object} Message
 * @property {string} id
 * @property {string | null} parent
 * @property {string | null} chosen the child that is shown.
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {number} created milliseconds since 1970.
 * @property {number} [changed] milliseconds at which it was last changed.
 * @property {import("./media.js").Medium[]} [media] that stand before the text.
 * @property {{name: string, text: string}[]} [files] that stand behind it.
 * @property {string} [reasoning]
 * @property {Call[]} [calls]
 * @property {string} [call] id of the call that a tool's message answers.
 * @property {string} [name] of the tool.
 * @property {string} [model]
 * @property {Token[]} [tokens]
 * @property {Stats} [stats]
 * @property {string | null} [finish] why it ended; null while it is being written.
 * @property {string} [error] what went wrong, in words.
 * @property {string} [help] what helps then: a key of `HELP` in `message_view.js`.
 * @property {{total: number, cache: number, processed: number, time_ms: number}} [progress] of the prompt, until the first token.
 */

/**
 * @typedef {object} Conversation
 * @property {string} id
 * @property {number} version
 * @property {string} title
 * @property {boolean} named whether the user gave the title.
 * @property {number} created
 * @property {number} updated
 * @property {number} [changed] milliseconds at which the title, the settings or the first message were last chosen.
 * @property {string | null} chosen the first message that is shown.
 * @property {Message[]} messages in the order in which they were made.
 * @property {import("./settings.js").Settings} settings
 */

/** @returns {Conversation} */
export function newConversation(/** @type {import("./settings.js").Settings} */ settings) {
  const now = Date.now();
  return {
    id: newId(),
    version: VERSION,
    title: "New conversation",
    named: false,
    created: now,
    updated: now,
    chosen: null,
    messages: [],
    settings: structuredClone(settings),
  };
}

/** @returns {Message | undefined} */
export function find(/** @type {Conversation} */ conversation, /** @type {string | null} */ id) {
  return conversation.messages.find((message) => message.id === id);
}

/**
 * Adds a message below another one, and shows it.
 * @param {Conversation} conversation
 * @param {string | null} parent
 * @param {Partial<Message> & {role: Message["role"]}} facts
 * @returns {Message}
 */
export function add(conversation, parent, facts) {
  const message = { content: "", ...facts, id: newId(), parent, chosen: null, created: Date.now() };
  conversation.messages.push(message);
  choose(conversation, message);
  conversation.updated = message.created;
  return message;
}

/** @returns {Message[]} */
export function children(/** @type {Conversation} */ conversation, /** @type {string | null} */ parent) {
  return conversation.messages.filter((message) => message.parent === parent);
}

/** The versions of a message: itself and its siblings. @returns {Message[]} */
export function versions(/** @type {Conversation} */ conversation, /** @type {Message} */ message) {
  return children(conversation, message.parent);
}

/** Shows this version of a message. */
export function choose(/** @type {Conversation} */ conversation, /** @type {Message} */ message) {
  const owner = find(conversation, message.parent) ?? conversation;
  owner.chosen = message.id;
  touch(owner);
}

/** Notes that a message, or the head of a conversation, is changed now: `merge` keeps what was changed last. */
export function touch(/** @type {Message | Conversation} */ changed) {
  changed.changed = Date.now();
}

const HEAD = /** @type {const} */ (["title", "named", "settings", "chosen", "changed"]);

/**
 * Takes into a conversation what another tab has kept of it: its messages, and of what both have what was changed
 * later. No message is lost. Whether anything has come.
 * @param {Conversation} mine
 * @param {Conversation} theirs
 */
export function merge(mine, theirs) {
  const known = new Map(mine.messages.map((message) => [message.id, message]));
  let came = isLater(theirs, mine);
  if (came) for (const name of HEAD) /** @type {any} */ (mine)[name] = theirs[name];
  for (const message of theirs.messages) {
    const own = known.get(message.id);
    if (own && !isLater(message, own)) {
      own.chosen ??= message.chosen; // what is below it stays reached
      continue;
    }
    came = true;
    if (!own) mine.messages.push(message); // its parent is there: messages come in the order in which they were made
    else {
      const { chosen } = own;
      for (const name of Object.keys(own)) delete /** @type {any} */ (own)[name];
      Object.assign(own, message, { chosen: message.chosen ?? chosen });
    }
  }
  mine.updated = Math.max(mine.updated, theirs.updated);
  return came;
}

function isLater(/** @type {Message | Conversation} */ one, /** @type {Message | Conversation} */ other) {
  return (one.changed ?? one.created ?? 0) > (other.changed ?? other.created ?? 0);
}

/** The messages that are shown, from the first to the last. @returns {Message[]} */
export function shown(/** @type {Conversation} */ conversation) {
  const line = [];
  let next = find(conversation, conversation.chosen);
  while (next) {
    line.push(next);
    next = find(conversation, next.chosen);
  }
  return line;
}

/** The messages that lead to one, which is the last of them. @returns {Message[]} */
export function lineTo(/** @type {Conversation} */ conversation, /** @type {Message | undefined} */ message) {
  const line = [];
  for (let each = message; each; each = find(conversation, each.parent)) line.unshift(each);
  return line;
}

/** A title made of the first line of a text. @returns {string} */
export function titleOf(/** @type {string} */ text) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New conversation";
}
