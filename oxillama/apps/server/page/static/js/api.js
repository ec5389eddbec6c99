/** The server: its answers, its streams, and what went wrong, in words. */

/** The server has refused a request, or a stream has ended with an error. */
export class ServerError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string} [code]
   * @param {Record<string, any>} [facts] further fields of the error.
   */
  constructor(status, message, code = "", facts = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.facts = facts;
  }
}

/** Nothing listens at the address, or the connection broke. */
export class ConnectionLost extends Error {}

/** Requests to the server that the page came from. */
export class Api {
  constructor() {
    this.base = new URL(".", document.baseURI);
    this.key = "";
  }

  /**
   * The JSON of a path.
   * @param {string} path
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  async get(path, signal) {
    const response = await this.#fetch(path, { signal });
    return response.json();
  }

  /**
   * The JSON of the answer to a body.
   * @param {string} path
   * @param {object} body
   * @returns {Promise<any>}
   */
  async post(path, body) {
    return this.send(path, JSON.stringify(body), "application/json");
  }

  /**
   * The JSON of the answer to data of any type.
   * @param {string} path
   * @param {BodyInit} body
   * @param {string} type
   * @returns {Promise<any>}
   */
  async send(path, body, type) {
    const response = await this.#fetch(path, { method: "POST", headers: { "Content-Type": type }, body });
    return response.json();
  }

  /** The data of a stream's events, as they come. @returns {AsyncGenerator<any>} */
  async *stream(/** @type {string} */ path, /** @type {object} */ body, /** @type {AbortSignal} */ signal) {
    const response = await this.#fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    if (!response.body) throw new ConnectionLost("The server sent an empty answer.");
    let ended = false;
    try {
      for await (const data of events(response.body)) {
        if (data === "[DONE]") {
          ended = true;
          return;
        }
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(200, event.error.message, event.error.code, event.error);
        yield event;
      }
    } catch (error) {
      throw error instanceof TypeError ? new ConnectionLost(this.#gone()) : error;
    }
    if (!ended) throw new ConnectionLost("The connection broke before the answer was complete.");
  }

  /** The objects of a stream of lines, as they come. @returns {AsyncGenerator<any>} */
  async *lines(/** @type {string} */ path, /** @type {object} */ body) {
    const response = await this.#fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    if (!response.body) throw new ConnectionLost("The server sent an empty answer.");
    try {
      for await (const line of parts(response.body, /\n/)) {
        const found = JSON.parse(line);
        if (found.error) throw new ServerError(200, found.error);
        yield found;
      }
    } catch (error) {
      throw error instanceof TypeError ? new ConnectionLost(this.#gone()) : error;
    }
  }

  /** @returns {Promise<Response>} */
  async #fetch(/** @type {string} */ path, /** @type {RequestInit} */ options) {
    const headers = { ...options.headers, ...(this.key ? { Authorization: `Bearer ${this.key}` } : {}) };
    let response;
    try {
      response = await fetch(new URL(path, this.base), { ...options, headers, cache: "no-store" });
    } catch (error) {
      throw error instanceof TypeError ? new ConnectionLost(this.#gone()) : error;
    }
    if (response.ok) return response;
    const text = await response.text().catch(() => "");
    let found;
    try {
      found = JSON.parse(text).error;
      if (typeof found === "string") found = { message: found }; // as Ollama's interface has it
    } catch {
      found = { message: text.slice(0, 300) };
    }
    throw new ServerError(response.status, found?.message || `status ${response.status}`, found?.code ?? "", found ?? {});
  }

  #gone() {
    return `The server at ${this.base.host} does not answer; try again when it runs.`;
  }
}

/**
 * The data of server-sent events. Comments, which are signs of life, are left out.
 * @returns {AsyncGenerator<string>}
 */
export async function* events(/** @type {ReadableStream<Uint8Array>} */ body) {
  for await (const block of parts(body, /\r?\n\r?\n/)) {
    const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
    if (lines.length) yield lines.map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n");
  }
}

/** The parts of a text that end with a mark, as they come. @returns {AsyncGenerator<string>} */
async function* parts(/** @type {ReadableStream<Uint8Array>} */ body, /** @type {RegExp} */ mark) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += decoder.decode(value, { stream: !done });
      const found = rest.split(mark);
      rest = found.pop() ?? "";
      yield* found;
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What went wrong, in words for the user. @returns {string} */
export function inWords(/** @type {unknown} */ error) {
  if (error instanceof ServerError) {
    if (error.status === 401) return "The server asks for an API key.";
    if (error.status === 429) return `The server is busy: ${error.message}`;
    if (error.code === "loading") return "The model is still being loaded.";
    if (error.code === "hub_unreachable") return error.message;
    if (error.code === "shutting_down") return "The server is stopping.";
    const { n_prompt_tokens: used, n_ctx: size } = error.facts;
    if (used && size) return `The conversation has ${used.toLocaleString("en")} tokens, and ${size.toLocaleString("en")} fit.`;
    return `The server refused: ${error.message}`;
  }
  return error instanceof Error ? error.message : String(error);
}

/** What helps where trying again alone does not: a key of `HELP` in `message_view.js`, else an empty text. @returns {string} */
export function helpFor(/** @type {unknown} */ error) {
  if (!(error instanceof ServerError)) return "";
  if (error.status === 401) return "key";
  if (error.code === "context_length_exceeded") return "new";
  return error.status === 400 && error.facts.param ? "settings" : "";
}
