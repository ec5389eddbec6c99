/** From a conversation to the body of a request. */

import { textOf } from "./attachments.js";
import { partsOf } from "./media.js";

/** A setting that no request can be made of. */
export class SettingError extends Error {
  /**
   * @param {string} field of the settings.
   * @param {string} message
   */
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

const TOP = 5;

/**
 * Path and body of the request for the message behind a line of messages.
 * @param {import("./tree.js").Message[]} line
 * @param {import("./settings.js").Settings} settings
 * @param {Pick<import("./server.js").Server, "model" | "chats" | "thinking"> & {tools?: object[]}} facts of the model;
 *   tools of the server, which go with no schema.
 * @param {boolean} [goesOn] whether the last message of the line is an answer that goes on.
 * @returns {{path: string, body: Record<string, any>}}
 */
export function requestOf(line, settings, { model, chats, thinking, tools = [] }, goesOn = false) {
  /** @type {Record<string, any>} */
  const body = { model, return_progress: true, ...options(settings, thinking) };
  if (chats && tools.length && !body.response_format) body.tools = [...(body.tools ?? []), ...tools];
  const wantsProbabilities = settings.probabilities && !body.jump_forward; // whose tokens have none
  if (!chats) {
    const logprobs = wantsProbabilities ? { logprobs: TOP } : {};
    const longest = "max_tokens" in body ? {} : { max_tokens: -1 };
    const prompt = settings.system + line.map(textOf).join("");
    return { path: "v1/completions", body: { prompt, ...longest, ...logprobs, ...body } };
  }
  /** @type {Record<string, any>} */
  const more = wantsProbabilities ? { logprobs: true, top_logprobs: TOP } : {};
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const messages = [...system, ...line.map(asMessage)];
  const reasoning = line.at(-1)?.reasoning;
  if (goesOn) {
    if (reasoning) Object.assign(messages[messages.length - 1], { reasoning_content: reasoning });
    Object.assign(more, { continue_final_message: true, add_generation_prompt: false });
  }
  return { path: "v1/chat/completions", body: { messages, ...more, ...body } };
}

/** A message as OpenAI's interface has it. Reasoning goes back only beside the calls that it led to. */
function asMessage(/** @type {import("./tree.js").Message} */ message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.call, content: message.content };
  const content = textOf(message);
  if (message.role === "user" && message.media?.length) {
    const text = content ? [{ type: "text", text: content }] : [];
    return { role: "user", content: [...partsOf(message.media), ...text] };
  }
  if (message.role === "user" || !message.calls?.length) return { role: message.role, content };
  return {
    role: "assistant",
    content: content || null,
    ...(message.reasoning ? { reasoning_content: message.reasoning } : {}),
    tool_calls: message.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    })),
  };
}

/** The fields that the settings set. What they do not say is as the server has it. @returns {Record<string, any>} */
export function options(/** @type {import("./settings.js").Settings} */ settings, /** @type {{switch: string | null}} */ thinking) {
  /** @type {Record<string, any>} */
  const found = { ...settings.sampling };
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length) found.stop = stop;
  if (thinking.switch && settings.thinking !== "auto") found.chat_template_kwargs = { [thinking.switch]: settings.thinking === "on" };
  const schema = parsed("schema", settings.schema, "a JSON schema");
  if (schema !== undefined) {
    if (typeof schema !== "object" || schema === null || Array.isArray(schema))
      throw new SettingError("schema", "JSON schema: expected an object.");
    found.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  const tools = parsed("tools", settings.tools, "a list of tools");
  if (tools !== undefined) {
    const list = Array.isArray(tools) ? tools : [tools];
    if (list.length) found.tools = list.map(asTool);
    if (list.length && settings.toolChoice !== "auto") found.tool_choice = settings.toolChoice;
  }
  if (found.tools && found.response_format)
    throw new SettingError("tools", "Tools and a JSON schema cannot be combined. Empty one of the two.");
  const more = parsed("more", settings.more, "an object of fields");
  if (more !== undefined) {
    if (typeof more !== "object" || more === null || Array.isArray(more))
      throw new SettingError("more", "Further fields: expected an object.");
    Object.assign(found, more);
  }
  return found;
}

/** A tool as OpenAI's interface has it; the function alone is enough. */
function asTool(/** @type {any} */ tool) {
  if (typeof tool !== "object" || tool === null) throw new SettingError("tools", "Tools: expected objects.");
  return "function" in tool || "type" in tool ? tool : { type: "function", function: tool };
}

/** The value of a box with JSON; undefined if it is empty. */
function parsed(/** @type {string} */ field, /** @type {string} */ text, /** @type {string} */ expected) {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(field, `Expected ${expected} as JSON: ${error instanceof Error ? error.message : error}`);
  }
}
