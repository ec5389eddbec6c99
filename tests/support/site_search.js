// The site's own search, without a browser: node site_search.js WORKER INDEX < questions.json
// Prints, for each question, the addresses of the pages found, the best first.
const fs = require("fs");
const vm = require("vm");

const [worker, index] = process.argv.slice(2);
let listener;
let answer;
const room = vm.createContext({
  console,
  addEventListener: (_, told) => (listener = told),
  postMessage: (message) => (answer = message),
});
room.self = room;
vm.runInContext(fs.readFileSync(worker, "utf8"), room);

async function ask(type, data) {
  await listener({ data: { type, data } });
  return answer.data;
}

(async () => {
  const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"));
  await ask(0, { config, docs, options: { suggest: true } });
  const found = {};
  for (const question of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const { items } = await ask(2, question);
    found[question] = items.map((sections) => sections[0].location);
  }
  console.log(JSON.stringify(found));
})();
