/** Colours for code: comments, strings, numbers and common keywords, told apart without knowing the language. */

import { el } from "./dom.js";

const KEYWORDS = new Set(
  `abstract and as assert async await begin bool boolean break byte case catch char class const continue def default
  defer del delete do double elif else elsif end enum except export extends extern false False final finally float fn
  for foreach from func function global go goto if impl implements import in include instanceof int interface is
  lambda let local long loop match mod module mut namespace new nil None nonlocal not null of or package pass private
  protected pub public raise record ref repeat require return self select short signed static string struct super
  switch template then this throw trait true True try type typedef typeof union unless unsafe unsigned until use using
  val var virtual void volatile when where while with yield SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE
  CREATE TABLE JOIN LEFT RIGHT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL AS`.split(/\s+/),
);

const HASHES = /^(py|python|sh|bash|zsh|shell|console|rb|ruby|yaml|yml|toml|ini|r|perl|pl|make|makefile|dockerfile|cython|elixir|nix)$/i;
const DASHES = /^(sql|lua|hs|haskell|ada|elm)$/i;
const NONE = /^(|text|txt|plain|markdown|md|output)$/i;

/** Code as text and coloured pieces of text. @returns {Node[]} */
export function highlighted(/** @type {string} */ text, /** @type {string} */ language) {
  if (NONE.test(language) || text.length > 100_000) return [document.createTextNode(text)];
  let comment = /\/\/.*|\/\*[^]*?(?:\*\/|$)/.source;
  if (HASHES.test(language)) comment = "#.*";
  if (DASHES.test(language)) comment = "--.*";
  if (/^(html|xml|svg)$/i.test(language)) comment = "<!--[^]*?(?:-->|$)";
  if (/^json$/i.test(language)) comment = "(?!)";
  const string = /"""[^]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?/.source;
  const number = /\b\d[\d_.]*(?:[eE][+-]?\d+)?\b|\b0[xXbB][\da-fA-F_]+\b/.source;
  const all = new RegExp(`(${comment})|(${string})|(${number})|([A-Za-z_]\\w*)`, "g");
  /** @type {Node[]} */
  const found = [];
  let done = 0;
  for (const match of text.matchAll(all)) {
    const kind = match[1] ? "comment" : match[2] ? "string" : match[3] ? "number" : KEYWORDS.has(match[4]) ? "keyword" : "";
    if (!kind) continue;
    found.push(document.createTextNode(text.slice(done, match.index)), el("span", { class: `code-${kind}` }, match[0]));
    done = match.index + match[0].length;
  }
  found.push(document.createTextNode(text.slice(done)));
  return found;
}
