// Loops of clients for Node, each written as its documentation shows.
//
//     node node_loops.mjs CLIENT WORDS URL...
//
// Prints a line of JSON for each URL and for each of the modes whole and stream: the two answers that the client
// found, or an error. WORDS are the texts of `words.py` as JSON. Runs where the packages are found.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [name, words, ...urls] = process.argv.slice(2);
const { SYSTEM, QUESTION, RESULT, BESIDE, FURTHER, CITIES, TOOL, ABOUT, PARAMETERS } = JSON.parse(words);
const require = createRequire(pathToFileURL(`${process.cwd()}/`));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const MODEL = "scripted";
const HEAD = { role: "system", content: SYSTEM };
const ASK = { role: "user", content: QUESTION };
const MORE = { role: "user", content: FURTHER };
const FUNCTION = { name: TOOL, description: ABOUT, parameters: PARAMETERS };

function resultOf(given) {
  const found = typeof given === "string" ? JSON.parse(given) : given;
  if (!CITIES.includes(found.city)) throw new Error(`arguments: ${JSON.stringify(given)}`);
  return `${RESULT} sunny`;
}

async function openaiChat(url, stream) {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const messages = [HEAD, ASK];
  const ask = async () => {
    const body = { model: MODEL, messages, tools: [{ type: "function", function: FUNCTION }] };
    if (stream) return await client.chat.completions.stream(body).finalMessage();
    return (await client.chat.completions.create(body)).choices[0].message;
  };
  const message = await ask();
  const [call] = message.tool_calls;
  messages.push(message, { role: "tool", tool_call_id: call.id, content: resultOf(call.function.arguments) });
  const first = await ask();
  messages.push(first, MORE);
  return [first.content, (await ask()).content];
}

async function openaiResponses(url, stream) {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const input = [ASK];
  const ask = async () => {
    const body = { model: MODEL, instructions: SYSTEM, input, tools: [{ type: "function", strict: true, ...FUNCTION }] };
    if (stream) return await client.responses.stream(body).finalResponse();
    return await client.responses.create(body);
  };
  const found = await ask();
  const call = found.output.find((item) => item.type === "function_call");
  input.push(...found.output);
  input.push({ type: "function_call_output", call_id: call.call_id, output: resultOf(call.arguments) });
  const first = await ask();
  input.push(...first.output, MORE);
  return [first.output_text, (await ask()).output_text];
}

async function anthropic(url, stream) {
  const { default: Anthropic } = await load("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const messages = [ASK];
  const ask = async () => {
    const tools = [{ name: TOOL, description: ABOUT, input_schema: PARAMETERS }];
    const body = { model: MODEL, max_tokens: 200, system: SYSTEM, messages, tools };
    if (stream) return await client.messages.stream(body).finalMessage();
    return await client.messages.create(body);
  };
  const text = (message) => message.content.filter((b) => b.type === "text").map((b) => b.text).join("");
  const found = await ask();
  const call = found.content.find((block) => block.type === "tool_use");
  const result = { type: "tool_result", tool_use_id: call.id, content: resultOf(call.input) };
  messages.push({ role: "assistant", content: found.content });
  messages.push({ role: "user", content: [result, { type: "text", text: BESIDE }] });
  const first = await ask();
  messages.push({ role: "assistant", content: first.content }, MORE);
  return [text(first), text(await ask())];
}

async function ollama(url, stream) {
  const { Ollama } = await load("ollama");
  const client = new Ollama({ host: url });
  const messages = [HEAD, ASK];
  const ask = async () => {
    const body = { model: MODEL, messages, tools: [{ type: "function", function: FUNCTION }] };
    if (!stream) return (await client.chat(body)).message;
    const whole = { role: "assistant", content: "", thinking: "", tool_calls: [] };
    for await (const { message } of await client.chat({ ...body, stream: true })) {
      whole.content += message.content ?? "";
      whole.thinking += message.thinking ?? "";
      whole.tool_calls.push(...(message.tool_calls ?? []));
    }
    return whole;
  };
  const message = await ask();
  const [call] = message.tool_calls;
  messages.push(message, { role: "tool", tool_name: TOOL, content: resultOf(call.function.arguments) });
  const first = await ask();
  messages.push(first, MORE);
  return [first.content, (await ask()).content];
}

function sdk(modelOf) {
  return async (url, stream) => {
    const { generateText, streamText, tool, jsonSchema, stepCountIs } = await load("ai");
    const weather = tool({ description: ABOUT, inputSchema: jsonSchema(PARAMETERS), execute: resultOf });
    const messages = [ASK];
    const ask = async () => {
      const how = { model: await modelOf(url), system: SYSTEM, messages, tools: { [TOOL]: weather } };
      const all = { ...how, stopWhen: stepCountIs(4), maxRetries: 0 };
      if (!stream) {
        const done = await generateText(all);
        return [done.text, done.response.messages];
      }
      let failure;
      const done = streamText({ ...all, onError: ({ error }) => { failure = error; } });
      await done.consumeStream();
      if (failure) throw failure;
      return [await done.text, (await done.response).messages];
    };
    const [first, said] = await ask();
    messages.push(...said, MORE);
    return [first, (await ask())[0]];
  };
}

const sdkOpenai = async (url) => (await load("@ai-sdk/openai")).createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });

async function agents(url, stream) {
  const { Agent, Runner, tool, OpenAIProvider, setTracingDisabled } = await load("@openai/agents");
  setTracingDisabled(true);
  const { z } = await load("zod");
  const parameters = z.object({ city: z.enum(CITIES) });
  const weather = tool({ name: TOOL, description: ABOUT, parameters, execute: async (given) => resultOf(given) });
  const useResponses = name.includes("responses");
  const modelProvider = new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "none", useResponses });
  const runner = new Runner({ modelProvider });
  const agent = new Agent({ name: "a", instructions: SYSTEM, model: MODEL, tools: [weather] });
  const ask = async (input) => {
    const done = await runner.run(agent, input, { stream });
    if (stream) {
      for await (const _ of done);
      await done.completed;
    }
    return done;
  };
  const first = await ask(QUESTION);
  const last = await ask([...first.history, MORE]);
  return [first.finalOutput, last.finalOutput];
}

const LOOPS = {
  "openai (chat completions)": openaiChat,
  "openai (responses)": openaiResponses,
  "@anthropic-ai/sdk": anthropic,
  ollama,
  "@ai-sdk/openai (chat completions)": sdk(async (url) => (await sdkOpenai(url)).chat(MODEL)),
  "@ai-sdk/openai (responses)": sdk(async (url) => (await sdkOpenai(url)).responses(MODEL)),
  "@ai-sdk/openai-compatible": sdk(async (url) => {
    const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
    return createOpenAICompatible({ name: "here", baseURL: `${url}/v1` })(MODEL);
  }),
  "@ai-sdk/anthropic": sdk(async (url) => {
    const { createAnthropic } = await load("@ai-sdk/anthropic");
    return createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(MODEL);
  }),
  "ollama-ai-provider-v2": sdk(async (url) => {
    const { createOllama } = await load("ollama-ai-provider-v2");
    return createOllama({ baseURL: `${url}/api` })(MODEL);
  }),
  "@openai/agents (chat completions)": agents,
  "@openai/agents (responses)": agents,
};

for (const url of urls) {
  for (const stream of [false, true]) {
    const found = { url, stream };
    try {
      found.answers = await LOOPS[name](url, stream);
    } catch (error) {
      found.error = `${error?.responseBody ?? ""} ${error?.stack ?? error}`.slice(0, 2000);
    }
    console.log(`\n${JSON.stringify(found)}`);
  }
}
process.exit(0);
