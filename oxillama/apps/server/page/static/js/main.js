/** Puts the parts of the page together. */

import { Api, inWords } from "./api.js";
import { attachment } from "./attachments.js";
import { Chats } from "./chats.js";
import { Composer } from "./composer.js";
import { Decisions } from "./decisions.js";
import { byId, newId, sizeOf } from "./dom.js";
import { ModelFinder } from "./hub.js";
import { drawIcons } from "./icons.js";
import { ServedTools } from "./mcp.js";
import { announce, askForKey, showKeys, toast } from "./notices.js";
import { Panels } from "./panels.js";
import { SettingError } from "./request.js";
import { Server } from "./server.js";
import { SettingsPanel, inUse } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { keep, openStore, recall } from "./store.js";
import { startTheme } from "./theme.js";
import { Thread, welcome } from "./thread.js";
import { asJson, asMarkdown, download, fileName, fromJson } from "./transfer.js";
import { choose, find, shown } from "./tree.js";

drawIcons();
startTheme();

export const store = await openStore(); // exported for tests: one more might never be opened
const api = new Api();
const server = new Server(api);
const panels = new Panels();
const settings = new SettingsPanel();
const servedTools = new ServedTools(api, server);
const finder = new ModelFinder(api, server, useModel);
const decisions = new Decisions(api, server);
let settingsOf = "";
let asking = false;

api.key = recall("key");

const chats = new Chats(store, api, server, {
  changed: draw,
  grew: (message) => thread.update(message),
  ended: (message) => {
    const calls = (message.calls ?? []).map((call) => `The model calls ${call.name}.`).join(" ");
    const tokens = message.stats?.tokens ?? 0;
    announce(message.error ?? `The answer has ended: ${tokens} tokens. ${calls} ${message.content.slice(0, 1000)}`);
  },
  kept: drawList,
  failed: (text) => toast(text, "fault"),
});

const thread = new Thread({
  edit: (message, text) => attempt(() => chats.edit(message, text)),
  again: (message) => attempt(() => chats.again(message)),
  goOn: (message) => attempt(() => chats.goOn(message)),
  answer: (message, results) => attempt(() => chats.answer(message, results)),
  offer: (call, area) => servedTools.offer(call, area, chats.open),
  help,
  choose: (message) => {
    choose(chats.open, message);
    chats.changed();
  },
});

thread.ondraw = drawContext;

const composer = new Composer({
  send: (text, media, files) => attempt(() => chats.send(text, media, files)),
  read: async (file) => {
    try {
      return await attachment(file, api, server.takes);
    } catch (error) {
      toast(inWords(error), "fault");
      return null;
    }
  },
  failed: (error) => toast(`The microphone cannot be used. ${error instanceof Error ? error.message : error}`, "fault"),
  stop: () => chats.stop(),
  editLast: () => thread.editLast(),
  settings: () => panels.show("settings", true),
});

const sidebar = new Sidebar({
  open: (id) => {
    if (panels.narrow.matches) panels.show("sidebar", false);
    location.hash = id;
    byId("prompt").focus();
  },
  rename: (id, title) => chats.rename(id, title),
  remove: (id) => chats.remove(id),
});

/** Does what asks the server for an answer; whether it was begun. */
function attempt(/** @type {() => void} */ act) {
  try {
    if (server.state === "locked") throw new Error("The server asks for an API key.");
    act();
    thread.end();
    return true;
  } catch (error) {
    if (error instanceof SettingError) {
      panels.show("settings", true);
      settings.point(error);
    }
    toast(error instanceof Error ? error.message : String(error), "fault");
    if (server.state === "locked") unlock();
    return false;
  }
}

/** Does what helps against an error of an answer. */
function help(/** @type {import("./tree.js").Message} */ { help, parent }) {
  const asked = find(chats.open, parent);
  if (help === "key") unlock();
  else if (help === "settings") panels.show("settings", true);
  else if (asked) {
    beginConversation();
    const media = (asked.media ?? []).map((medium) => ({ name: medium.name, text: "", medium }));
    composer.put(asked.content, [...(asked.files ?? []), ...media]);
  }
}

/** Draws all that depends on the open conversation or on the server. */
function draw() {
  const { open } = chats;
  const line = shown(open);
  const running = chats.writing;
  thread.show(open, running, !server.chats, welcome(server, (text) => composer.put(text)));
  composer.show({
    running: Boolean(running),
    chats: server.chats,
    goesOn: !server.chats && line.length > 0,
    chips: inUse(open.settings),
    takes: server.takes,
  });
  drawContext();
  const facts = `${open.id} ${server.chats} ${server.thinking.switch} ${server.thinking.delimited} ${JSON.stringify(server.defaults)}`;
  if (facts !== settingsOf || settings.settings !== open.settings) settings.show(open.settings, server.defaults, server.chats, server.thinking);
  settingsOf = facts;
  byId("export-menu").hidden = !line.length;
  document.title = line.length ? `${open.title} – oxillama` : "oxillama";
  const hash = line.length ? `#${open.id}` : "";
  if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname + location.search);
  sidebar.current = open.id;
  sidebar.running = new Set([...chats.running.keys(), ...chats.elsewhere.keys()]);
  sidebar.draw();
}

/** Draws how much of the context the open conversation has taken. */
function drawContext() {
  const used = shown(chats.open).findLast((message) => message.stats?.used)?.stats?.used ?? 0;
  const size = server.card?.meta?.n_ctx ?? 0;
  const label = `${used.toLocaleString("en")} of ${size.toLocaleString("en")} tokens`;
  const meter = byId("context");
  meter.hidden = !used || !size;
  meter.max = size || 1;
  meter.value = used;
  meter.high = 0.8 * size;
  meter.title = `Context: ${label}`;
  byId("context-text").textContent = meter.hidden ? "" : label;
}

async function drawList() {
  sidebar.summaries = await store.summaries();
  sidebar.draw();
}

const STATES = {
  connecting: "connecting",
  ready: "ready",
  loading: "the model is being loaded",
  locked: "an API key is needed",
  gone: "the server does not answer",
  failed: "the model cannot be used",
};

/** Draws what is known of the server. */
function drawServer() {
  const status = byId("status");
  status.className = `status ${server.state}`;
  status.setAttribute("aria-label", STATES[server.state]);
  status.title = STATES[server.state];
  const several = server.models.length > 1;
  byId("model-choice").hidden = !several;
  byId("model-name").hidden = several;
  byId("model-name").textContent = server.model || STATES[server.state];
  const select = byId("model-select");
  select.replaceChildren(...server.models.map(({ id }) => new Option(id, id, false, id === server.model)));
  const meta = server.card?.meta;
  byId("model-facts").textContent = meta
    ? [meta.architecture, meta.n_ctx && `context ${meta.n_ctx.toLocaleString("en")}`, meta.size && sizeOf(meta.size)].filter(Boolean).join(" · ")
    : "";
  byId("hint").textContent =
    server.state === "gone"
      ? "The server does not answer."
      : store.keeps
        ? "Answers may be wrong. Check what matters."
        : "This browser keeps nothing: conversations are gone when the tab is closed.";
  byId("find-model").hidden = !server.mayPull;
  byId("decide").hidden = !(server.state === "ready" && (server.onlyDecides || server.chats));
  draw();
  if (server.state === "locked") unlock();
}

function useModel(/** @type {string} */ model) {
  keep("model", model);
  server.use(model);
}

/** Asks for the key of the server until there is a right one, or the user gives none. */
async function unlock() {
  if (asking) return;
  asking = true;
  const found = await askForKey(api.key !== "");
  asking = false;
  if (!found) return;
  api.key = found.key;
  keep("key", found.key, found.forGood);
  server.state = "connecting";
  server.known = "";
  await server.refresh();
}

function beginConversation() {
  if (panels.narrow.matches && panels.sidebar) panels.show("sidebar", false);
  chats.begin();
  byId("prompt").focus();
}

async function importFile(/** @type {File} */ file) {
  try {
    const found = fromJson(await file.text());
    for (const conversation of found) {
      if (await store.load(conversation.id)) conversation.id = newId();
      await store.save(conversation);
    }
    toast(`${found.length} conversation${found.length === 1 ? "" : "s"} imported.`);
    if (found[0]) location.hash = found[0].id;
  } catch (error) {
    toast(`The file was not imported. ${error instanceof Error ? error.message : error}`, "fault");
  }
  await drawList();
}

settings.onchange = () => chats.changed();
server.addEventListener("change", drawServer);
byId("model-select").addEventListener("change", (/** @type {any} */ event) => useModel(event.target.value));
byId("find-model").addEventListener("click", () => finder.open());
byId("decide").addEventListener("click", () => decisions.open());
byId("new-chat").addEventListener("click", beginConversation);
byId("help").addEventListener("click", showKeys);
byId("export-markdown").addEventListener("click", () => {
  download(fileName(chats.open.title, "md"), "text/markdown", asMarkdown(chats.open));
  byId("export-menu").open = false;
});
byId("export-json").addEventListener("click", () => {
  download(fileName(chats.open.title, "json"), "application/json", asJson([chats.open]));
  byId("export-menu").open = false;
});
byId("export-all").addEventListener("click", async () => {
  download("oxillama-conversations.json", "application/json", asJson(await store.all()));
});
byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", async (/** @type {any} */ event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (file) await importFile(file);
});
document.addEventListener("click", (event) => {
  const menu = byId("export-menu");
  if (!menu.contains(event.target)) menu.open = false;
});
window.addEventListener("hashchange", async () => {
  const id = location.hash.slice(1);
  if (id !== chats.open.id && !(await chats.show(id))) chats.begin();
  thread.end();
});
window.addEventListener("pagehide", () => chats.leave());
window.addEventListener("beforeunload", () => {
  chats.leaving = true; // streams may break before the page is left; if it is not, they may not
  setTimeout(() => (chats.leaving = false), 3000);
});

document.addEventListener("keydown", (event) => {
  const command = event.ctrlKey || event.metaKey;
  const target = /** @type {HTMLElement} */ (event.target);
  const types = target.matches("input, textarea, select");
  const key = event.key.toLowerCase();
  if (document.querySelector("dialog[open]")) return;
  if (key === "escape" && !event.defaultPrevented) {
    if (!chats.stop()) panels.close();
  } else if (command && event.shiftKey && key === "o") act(event, beginConversation);
  else if (command && key === "k") {
    act(event, () => {
      panels.show("sidebar", true);
      byId("search").focus();
    });
  } else if (command && key === ",") act(event, () => panels.show("settings", !panels.settings));
  else if (!types && !command && key === "/") act(event, () => byId("prompt").focus());
  else if (!types && !command && key === "?") act(event, showKeys);
});

function act(/** @type {Event} */ event, /** @type {() => void} */ job) {
  event.preventDefault();
  job();
}

const question = new URLSearchParams(location.search).get("q");
if (question !== null) {
  history.replaceState(null, "", location.pathname + location.hash);
  composer.put(question); // which the user sends, not whoever made the link
}
server.model = recall("model");
const wanted = location.hash.slice(1); // before another tab's news draws the empty conversation, which has no hash
await drawList();
if (!(wanted && (await chats.show(wanted)))) draw();
thread.end();
await server.refresh();
if (!panels.narrow.matches) byId("prompt").focus();
