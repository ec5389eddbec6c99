/**
 * Markdown and the formulas in it, as blocks of markdown-it's tokens. HTML is no part of it; tags are text.
 * Each block has a key, so that a text that grows is drawn anew from its last block only.
 */

export const DEEPEST = 40;
const MOST_FORMULAS = 2000;
const DISPLAYED = [["$$", "$$"], ["\\[", "\\]"]];
const PAIRS = [...DISPLAYED, ["\\(", "\\)"]];

/** @type {any} */
const markdown = /** @type {any} */ (globalThis).markdownit({ linkify: true, breaks: true, maxNesting: DEEPEST });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = () => true; // the view decides what may be followed
markdown.block.ruler.before("fence", "formula", displayed, { alt: ["paragraph", "reference", "blockquote", "list"] });
markdown.inline.ruler.before("escape", "formula", inline);

/**
 * The blocks of a text.
 * @param {string} text
 * @param {boolean} [grows] whether more may come: then a formula that is open at the end is plain text.
 * @returns {{key: string, tokens: any[]}[]}
 */
export function parse(text, grows = false) {
  const lines = text.split(/\r\n?|\n/);
  const env = { grows, isLast: false, references: {}, unclosed: new Set(), n: { formulas: 0 } };
  /** @type {{key: string, tokens: any[]}[]} */
  const blocks = [];
  /** @type {any[]} */
  let tokens = [];
  let source = "";
  for (const token of markdown.parse(text, env)) {
    tokens.push(token);
    if (token.level || token.nesting > 0) continue;
    source = lines.slice(...tokens[0].map).join("\n");
    const isTooDeep = tokens.some(({ level }) => level >= DEEPEST - 2); // what is deeper is left out
    if (isTooDeep) tokens = [{ type: "source", content: source, nesting: 0 }];
    blocks.push({ key: `${Object.keys(env.references).length} ${source}`, tokens });
    tokens = [];
  }
  const last = blocks.at(-1);
  if (!last || !grows) return blocks;
  if (last.tokens[0].type !== "source") last.tokens = markdown.parse(source, { ...env, isLast: true, n: { formulas: 0 } });
  last.key += " …";
  return blocks;
}

/** A formula that stands in lines of its own. */
function displayed(/** @type {any} */ state, /** @type {number} */ first, /** @type {number} */ end, /** @type {boolean} */ silent) {
  const begin = state.bMarks[first] + state.tShift[first];
  const pair = DISPLAYED.find(([open]) => state.src.startsWith(open, begin));
  const unclosed = `${pair?.[0]} ${end}`;
  if (!pair || state.env.n.formulas >= MOST_FORMULAS || state.sCount[first] - state.blkIndent > 3 || state.env.unclosed.has(unclosed)) return false;
  let tex = "";
  let line = first;
  for (; line < end; line += 1) {
    if (line > first && !state.isEmpty(line) && state.sCount[line] < state.blkIndent) return false;
    const from = line === first ? begin + 2 : state.bMarks[line] + state.tShift[line];
    const text = state.src.slice(from, state.eMarks[line]);
    const close = text.indexOf(pair[1]);
    if (close >= 0 && text.slice(close + 2).trim()) return false;
    tex += close < 0 ? `${text}\n` : text.slice(0, close);
    if (close >= 0) break;
  }
  if (line === end) {
    state.env.unclosed.add(unclosed);
    if (!state.env.grows || state.level) return false;
  }
  if (silent) return true;
  state.env.n.formulas += 1;
  const token = state.push(line === end ? "source" : "formula", "", 0);
  token.content = line === end ? pair[0] + tex : tex;
  token.markup = pair.join("");
  state.line = Math.min(line + 1, end);
  token.map = [first, state.line];
  return true;
}

/** A formula in a line. A delimiter without the other one stays as it is. */
function inline(/** @type {any} */ state, /** @type {boolean} */ silent) {
  const { src, pos, posMax } = state;
  const pair = PAIRS.find(([open]) => src.startsWith(open, pos)) ?? (src[pos] === "$" ? ["$", "$"] : null);
  if (!pair) return /^\\[)\]]/.test(src.slice(pos, pos + 2)) && plain(state, pos + 2, silent);
  const from = pos + pair[0].length;
  state.unclosed ??= new Set(); // so that no text is searched twice
  const close = pair[0] === "$" ? dollar(src, pos, posMax) : state.unclosed.has(pair[1]) ? -1 : src.indexOf(pair[1], from);
  if (close < 0) state.unclosed.add(pair[1]);
  if (close > 0 && close + pair[1].length <= posMax && state.env.n.formulas < MOST_FORMULAS) {
    if (!silent) {
      state.env.n.formulas += 1;
      const token = state.push("formula", "", 0);
      token.content = src.slice(from, close);
      token.markup = pair.join("");
    }
    state.pos = close + pair[1].length;
    return true;
  }
  const mayCome = state.env.isLast && (pair[0] !== "$" || /^[^\s$][^$\n]*[\\^_{}]/.test(src.slice(from, from + 200)));
  return plain(state, mayCome ? posMax : from, silent);
}

/** Takes text as it is. */
function plain(/** @type {any} */ state, /** @type {number} */ end, /** @type {boolean} */ silent) {
  if (!silent) state.pending += state.src.slice(state.pos, end);
  state.pos = end;
  return true;
}

/** Where the formula ends that "$" begins; 0 for none (as in "$5 and $6") */
function dollar(/** @type {string} */ src, /** @type {number} */ pos, /** @type {number} */ max) {
  let close = pos + 1;
  while (close < max && src[close] !== "$") close += src[close] === "\\" ? 2 : 1;
  const tex = src.slice(pos + 1, close);
  const isPrice = /^\d/.test(tex) && /\s/.test(tex) && !/[\\^_=+*/<>{}|-]/.test(tex);
  const fits = close < max && tex.trim() === tex && tex && !/\w/.test(src[pos - 1] ?? "") && !/\d/.test(src[close + 1] ?? "");
  return fits && !isPrice ? close : 0;
}
