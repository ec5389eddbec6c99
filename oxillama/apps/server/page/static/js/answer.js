/** From the events of a stream to a message. */

/** Takes the events of one answer, and counts its tokens and seconds. */
export class Answer {
  /** @param {import("./tree.js").Message} message that is written. */
  constructor(message) {
    this.message = message;
    this.began = performance.now();
    this.first = 0;
    this.last = 0;
    this.pieces = 0;
    this.before = message.stats?.tokens ?? 0; // of an answer that goes on
  }

  /**
   * Adds what an event tells.
   * @param {any} event of `/v1/chat/completions` or `/v1/completions`.
   */
  take(event) {
    if (event.usage) this.#count(event.usage, event.timings);
    if (event.prompt_progress) this.#progress(event.prompt_progress);
    const choice = event.choices?.[0];
    if (!choice) return;
    const { message } = this;
    const delta = choice.delta ?? { content: choice.text };
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.#came();
    if (delta.content) {
      if (message.reasoning && message.stats && message.stats.thought === undefined)
        message.stats.thought = (this.last - this.began) / 1000;
      message.content += delta.content;
    }
    if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
    for (const part of delta.tool_calls ?? []) this.#call(part);
    const tokens = tokensOf(choice.logprobs);
    if (tokens.length) (message.tokens ??= []).push(...tokens);
    if (choice.finish_reason) message.finish = choice.finish_reason;
    this.#rate();
  }

  /** @param {any} part of a call. */
  #call(part) {
    const calls = (this.message.calls ??= []);
    const call = (calls[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name = part.function.name;
    call.arguments += part.function?.arguments ?? "";
  }

  #progress(/** @type {{total: number, cache: number, processed: number, time_ms: number}} */ progress) {
    this.message.progress = progress;
    Object.assign((this.message.stats ??= { tokens: 0 }), { prompt: progress.total, cached: progress.cache });
  }

  #came() {
    delete this.message.progress;
    this.last = performance.now();
    this.first ||= this.last;
    this.pieces += 1;
  }

  #rate() {
    if (!this.first) return;
    const stats = (this.message.stats ??= { tokens: 0 });
    stats.tokens = Math.max(this.message.tokens?.length ?? 0, this.before + this.pieces);
    if (stats.prompt) stats.used = stats.prompt + this.pieces;
    stats.first = (this.first - this.began) / 1000;
    const seconds = (this.last - this.first) / 1000;
    if (this.pieces > 1 && seconds > 0) stats.rate = (this.pieces - 1) / seconds;
  }

  /** Takes the server's own numbers, which leave out what a request waited for others. */
  #count(/** @type {any} */ usage, /** @type {any} */ timings) {
    const stats = (this.message.stats ??= { tokens: 0 });
    stats.tokens = this.before + usage.completion_tokens;
    stats.used = usage.prompt_tokens + usage.completion_tokens;
    stats.prompt = usage.prompt_tokens;
    stats.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    if (timings?.predicted_per_second) stats.rate = timings.predicted_per_second;
    if (timings?.prompt_per_second) stats.promptRate = timings.prompt_per_second;
  }
}

/** Tokens and probabilities, in either form of OpenAI's interface. @returns {import("./tree.js").Token[]} */
export function tokensOf(/** @type {any} */ logprobs) {
  if (!logprobs) return [];
  if (logprobs.content)
    return logprobs.content.map((/** @type {any} */ entry) => ({
      text: entry.token,
      logprob: entry.logprob,
      top: entry.top_logprobs.map((/** @type {any} */ other) => [other.token, other.logprob]),
    }));
  return (logprobs.tokens ?? []).map((/** @type {string} */ text, /** @type {number} */ i) => ({
    text,
    logprob: logprobs.token_logprobs[i] ?? 0,
    top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}
