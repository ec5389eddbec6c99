/**
 * Markdown as a tree of plain objects: the part of CommonMark and of GitHub's tables, task lists and strikes
 * that models write. HTML is no part of it; tags are text. Each block knows its source, so that a text that
 * grows is drawn anew from its last block only.
 */

/**
 * @typedef {{kind: "text", text: string} | {kind: "code", text: string} | {kind: "break"}
 *   | {kind: "strong" | "em" | "del", inside: Inline[]}
 *   | {kind: "link", href: string, inside: Inline[]}} Inline
 */

/**
 * @typedef {object} Item
 * @property {boolean | null} checked
 * @property {Block[]} blocks
 */

/**
 * @typedef {object} Block
 * @property {"paragraph" | "heading" | "code" | "quote" | "list" | "table" | "rule"} kind
 * @property {string} source
 * @property {Inline[]} [inside]
 * @property {number} [level]
 * @property {string} [language]
 * @property {string} [text]
 * @property {Block[]} [blocks]
 * @property {boolean} [ordered]
 * @property {number} [start]
 * @property {boolean} [tight]
 * @property {Item[]} [items]
 * @property {string[]} [align]
 * @property {Inline[][]} [head]
 * @property {Inline[][][]} [rows]
 */

const DEEPEST = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/**
 * The blocks of a text.
 * @param {string} text
 * @param {number} [depth]
 * @returns {Block[]}
 */
export function parse(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  /** @type {Block[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at, depth);
    blocks.push({ ...block, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return blocks;
}

/** The block that begins in a line, and the line behind it. @returns {[any, number]} */
function blockAt(/** @type {string[]} */ lines, /** @type {number} */ at, /** @type {number} */ depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, inside: inline(heading[2] ?? "") }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) {
    const found = table(lines, at);
    if (found) return found;
  }
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines[end], depth)) end += 1;
  return [{ kind: "paragraph", inside: inline(lines.slice(at, end).map((each) => each.trimStart()).join("\n")) }, end];
}

/** Whether a line ends the paragraph before it. */
function interrupts(/** @type {string} */ line, /** @type {number} */ depth) {
  const item = ITEM.exec(line);
  const begins = depth < DEEPEST && (QUOTE.test(line) || (item && item[3] !== "" && !/^\d/.test(item[2])));
  const first = depth < DEEPEST && item && /^1[.)]/.test(item[2]);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || begins || first;
}

/** @returns {[any, number]} */
function fenced(/** @type {string[]} */ lines, /** @type {number} */ at, /** @type {RegExpExecArray} */ fence) {
  const indent = lines[at].search(/\S/);
  const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  const inner = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, line.search(/\S|$/))));
  const language = fence[2].trim().split(/\s/)[0];
  return [{ kind: "code", language, text: inner.join("\n") }, Math.min(end + 1, lines.length)];
}

/** @returns {[any, number]} */
function quote(/** @type {string[]} */ lines, /** @type {number} */ at, /** @type {number} */ depth) {
  let end = at;
  while (end < lines.length && (QUOTE.test(lines[end]) || (lines[end].trim() && !interrupts(lines[end], depth)))) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [{ kind: "quote", blocks: parse(inner.join("\n"), depth + 1) }, end];
}

/** @returns {[any, number]} */
function list(/** @type {string[]} */ lines, /** @type {number} */ at, /** @type {number} */ depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const kindOf = (/** @type {string} */ mark) => mark.at(-1);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let tight = true;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || kindOf(item[2]) !== kindOf(first[2]) || RULE.test(lines[end])) break;
    const indent = item[1].length + item[2].length + Math.min(item[3].length || 1, 4);
    const inner = [lines[end].slice(Math.min(indent, lines[end].length))];
    end += 1;
    let blank = false;
    while (end < lines.length) {
      const line = lines[end];
      const space = line.search(/\S|$/);
      if (!line.trim()) {
        let next = end;
        while (next < lines.length && !lines[next].trim()) next += 1;
        if (next === lines.length || lines[next].search(/\S/) < indent) break;
        blank = true;
        while (end < next - 1) {
          inner.push("");
          end += 1;
        }
        inner.push("");
      } else if (space >= indent) inner.push(line.slice(indent));
      else if (ITEM.test(line) || blank || interrupts(line, depth)) break;
      else inner.push(line.trimStart());
      end += 1;
    }
    const task = /^\[([ xX])\]\s+/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    if (blank) tight = false;
    items.push({ checked: task ? task[1] !== " " : null, blocks: parse(inner.join("\n"), depth + 1) });
    let after = end;
    while (after < lines.length && !lines[after].trim()) after += 1;
    const following = after > end && after < lines.length ? ITEM.exec(lines[after]) : null;
    if (following && kindOf(following[2]) === kindOf(first[2])) {
      tight = false;
      end = after;
    }
  }
  return [{ kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, tight, items }, end];
}

/** @returns {[any, number] | null} */
function table(/** @type {string[]} */ lines, /** @type {number} */ at) {
  const head = cells(lines[at]);
  const divider = cells(lines[at + 1]);
  if (head.length !== divider.length) return null;
  const align = divider.map((cell) => {
    if (cell.startsWith(":") && cell.endsWith(":")) return "center";
    return cell.endsWith(":") ? "right" : "left";
  });
  let end = at + 2;
  const rows = [];
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => inline(row[column] ?? "")));
    end += 1;
  }
  return [{ kind: "table", align, head: head.map(inline), rows }, end];
}

/** The cells of a table's row; "\|" is no border, and neither is a "|" in code. @returns {string[]} */
function cells(/** @type {string} */ line) {
  const found = [""];
  let ticks = false;
  const row = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  for (let i = 0; i < row.length; i += 1) {
    if (row[i] === "\\" && row[i + 1] === "|") {
      found[found.length - 1] += "|";
      i += 1;
    } else if (row[i] === "|" && !ticks) found.push("");
    else {
      if (row[i] === "`") ticks = !ticks;
      found[found.length - 1] += row[i];
    }
  }
  return found.map((cell) => cell.trim());
}

const PUNCTUATION = /[!-/:-@[-`{-~]/;
const ADDRESS = /^https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_]/;
const MARKS = /** @type {const} */ ([
  ["***", "both"],
  ["___", "both"],
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
]);

/**
 * The parts of a line of text.
 * @param {string} text
 * @param {number} [depth]
 * @returns {Inline[]}
 */
export function inline(text, depth = 0) {
  /** @type {Inline[]} */
  const found = [];
  const without = new Set(); // marks that nothing closes from here on, so that no text is searched twice
  let plain = "";
  const push = (/** @type {Inline} */ part) => {
    if (plain) found.push({ kind: "text", text: plain });
    plain = "";
    found.push(part);
  };
  let i = 0;
  while (i < text.length) {
    const here = text[i];
    if (here === "\\" && PUNCTUATION.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    if (here === "\n") {
      plain = plain.replace(/(\\| +)$/, "");
      push({ kind: "break" });
      i += 1;
      continue;
    }
    const part = depth < DEEPEST ? partAt(text, i, depth, without) : null;
    if (part) {
      push(part[0]);
      i = part[1];
    } else {
      const run = here === "`" ? /** @type {RegExpExecArray} */ (/^`+/.exec(text.slice(i)))[0] : here;
      plain += run;
      i += run.length;
    }
  }
  if (plain) found.push({ kind: "text", text: plain });
  return found;
}

/** Code, a link or an emphasis that begins here, and where it ends. @returns {[Inline, number] | null} */
function partAt(/** @type {string} */ text, /** @type {number} */ i, /** @type {number} */ depth, /** @type {Set<string>} */ without) {
  const here = text[i];
  if (here === "`") return codeAt(text, i, without);
  if (here === "[" || (here === "!" && text[i + 1] === "[")) return linkAt(text, here === "!" ? i + 1 : i, depth, without);
  if (here === "<") {
    const found = /^<(https?:\/\/[^\s<>]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)>/.exec(text.slice(i, i + 2000));
    if (!found) return null;
    const href = found[1].includes("://") ? found[1] : `mailto:${found[1]}`;
    return [{ kind: "link", href, inside: [{ kind: "text", text: found[1] }] }, i + found[0].length];
  }
  if (here === "h" && !/\w/.test(text[i - 1] ?? "")) {
    const found = ADDRESS.exec(text.slice(i, i + 2000));
    return found && [{ kind: "link", href: found[0], inside: [{ kind: "text", text: found[0] }] }, i + found[0].length];
  }
  for (const [mark, kind] of MARKS) {
    if (!text.startsWith(mark, i) || without.has(mark)) continue;
    const close = closing(text, i, mark);
    if (close < 0) without.add(mark);
    if (close > 0) {
      const inside = inline(text.slice(i + mark.length, close), depth + 1);
      /** @type {Inline} */
      const part = kind === "both" ? { kind: "strong", inside: [{ kind: "em", inside }] } : { kind, inside };
      return [part, close + mark.length];
    }
  }
  return null;
}

/** Where the mark at a place is closed; 0 where it opens nothing, -1 where nothing closes it. */
function closing(/** @type {string} */ text, /** @type {number} */ i, /** @type {string} */ mark) {
  const begin = i + mark.length;
  if (!/\S/.test(text[begin] ?? "") || text[begin] === mark[0]) return 0;
  if (mark[0] === "_" && /\w/.test(text[i - 1] ?? "")) return 0;
  for (let j = begin; j < text.length; j += 1) {
    if (text[j] === "\\") j += 1;
    else if (text[j] === "`") {
      const run = /** @type {RegExpExecArray} */ (/^`+/.exec(text.slice(j)))[0];
      const end = text.indexOf(run, j + run.length);
      j = (end < 0 ? j : end) + run.length - 1;
    } else if (text[j] === mark[0]) {
      let length = 1;
      while (text[j + length] === mark[0]) length += 1;
      const fits = length === mark.length || length === 3;
      const behind = text[j + length] ?? "";
      if (fits && /\S/.test(text[j - 1]) && !(mark[0] === "_" && /\w/.test(behind))) return j + length - mark.length;
      j += length - 1;
    }
  }
  return -1;
}

/** @returns {[Inline, number] | null} */
function codeAt(/** @type {string} */ text, /** @type {number} */ i, /** @type {Set<string>} */ without) {
  const run = /** @type {RegExpExecArray} */ (/^`+/.exec(text.slice(i)))[0];
  if (without.has(run)) return null;
  let end = i;
  do {
    end = text.indexOf(run, end + run.length);
    while (end >= 0 && text[end + run.length] === "`" && text[end - 1] !== "`") {
      while (text[end] === "`") end += 1; // a longer run closes nothing
      end = text.indexOf(run, end);
    }
  } while (end >= 0 && text[end - 1] === "`");
  if (end < 0) {
    without.add(run);
    return null;
  }
  const inner = text.slice(i + run.length, end).replace(/\n/g, " ");
  const padded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim();
  return [{ kind: "code", text: padded ? inner.slice(1, -1) : inner }, end + run.length];
}

/** @returns {[Inline, number] | null} */
function linkAt(
  /** @type {string} */ text,
  /** @type {number} */ i,
  /** @type {number} */ depth,
  /** @type {Set<string>} */ without,
) {
  if (without.has("]")) return null;
  let open = 0;
  let end = i;
  for (; end < text.length; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") open += 1;
    else if (text[end] === "]" && (open -= 1) === 0) break;
  }
  if (end >= text.length) {
    without.add("]");
    return null;
  }
  const target = /^\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(
    text.slice(end + 1, end + 2001),
  );
  if (!target) return null;
  const label = text.slice(i + 1, end) || target[1];
  return [{ kind: "link", href: target[1], inside: inline(label, depth + 1) }, end + 1 + target[0].length];
}
