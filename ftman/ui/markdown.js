// A small part of Markdown, enough for answers: code, headings, lists, quotes, bold, italic.
//
// Everything becomes elements with text nodes; links stay text, and nothing is parsed as HTML.

import { button, el } from "/ui/dom.js";

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s*([-*_])\s*(\1\s*){2,}$/;
const INLINE = /(`+)([^`](?:.*?[^`])?)\1(?!`)|\*\*(?=\S)(.+?)(?<=\S)\*\*|(?<![\w*])[*_](?=[^\s*_])([^*_\n]+?)(?<=\S)[*_](?![\w*])/g;

// Shows `text` in `node`. What has not changed since the last call stays as it is.
export function show(node, text) {
  const made = blocks(text);
  const had = node.sources || [];
  const sources = made.map((block) => block.key);
  let same = 0;
  while (same < had.length && same < sources.length && had[same] === sources[same]) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  node.append(...made.slice(same).map(element));
  node.sources = sources;
}

// The blocks of a text, each with a key that changes when the block does.
export function blocks(text) {
  const lines = text.split("\n");
  const found = [];
  for (let at = 0; at < lines.length;) {
    const from = at;
    const block = next(lines, at);
    at = block.end;
    if (block.kind) found.push({ ...block, key: `${block.kind}\n${lines.slice(from, at).join("\n")}` });
  }
  return found;
}

function next(lines, at) {
  const line = lines[at];
  if (!line.trim()) return { end: at + 1 };
  const fence = line.match(FENCE);
  if (fence) return code(lines, at, fence);
  const heading = line.match(HEADING);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2], end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (ITEM.test(line)) return list(lines, at);
  if (line.startsWith(">")) return run("quote", lines, at, (each) => each.startsWith(">"), (each) => each.replace(/^>\s?/, ""));
  if (line.trimStart().startsWith("|")) return run("table", lines, at, (each) => each.trimStart().startsWith("|"), (each) => each);
  return run("paragraph", lines, at, (each, first) => first || !starts(each), (each) => each);
}

function starts(line) {
  return !line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || line.startsWith(">");
}

function run(kind, lines, at, goesOn, clean) {
  let end = at;
  while (end < lines.length && goesOn(lines[end], end === at)) end += 1;
  return { kind, text: lines.slice(at, end).map(clean).join("\n"), end };
}

function code(lines, at, fence) {
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(fence[1]) && lines[end].trim().replace(/[`~]/g, "") === "")) end += 1;
  return { kind: "code", language: fence[2], text: lines.slice(at + 1, end).join("\n"), end: Math.min(end + 1, lines.length) };
}

function list(lines, at) {
  const items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const item = lines[end].match(ITEM);
    if (item) items.push({ depth: Math.min(4, Math.floor(item[1].length / 2)), mark: item[2], text: item[3] });
    else if (/^\s+\S/.test(lines[end])) items[items.length - 1].text += `\n${lines[end].trim()}`;
    else break;
  }
  return { kind: "list", items, end };
}

function element(block) {
  switch (block.kind) {
    case "code": return codeBlock(block);
    case "heading": return el(`h${Math.min(6, block.level + 2)}`, {}, ...inline(block.text));
    case "rule": return el("hr");
    case "list": return el("ul", { class: "items" }, ...block.items.map(listItem));
    case "quote": return el("blockquote", {}, ...inline(block.text));
    case "table": return el("pre", { class: "table", tabindex: "0" }, block.text);
    default: return el("p", {}, ...inline(block.text));
  }
}

function listItem(item) {
  const mark = /\d/.test(item.mark) ? item.mark : "•";
  return el("li", { class: `depth${item.depth}` }, el("span", { class: "mark" }, mark), el("span", {}, ...inline(item.text)));
}

function codeBlock(block) {
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(block.text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }, "quiet small");
  const head = el("div", { class: "codehead" }, el("span", {}, block.language || "code"), navigator.clipboard ? copy : null);
  return el("div", { class: "code" }, head, el("pre", { tabindex: "0" }, el("code", {}, block.text)));
}

function inline(text) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    parts.push(text.slice(last, match.index));
    const [whole, , quoted, bold, italic] = match;
    if (quoted !== undefined) parts.push(el("code", {}, quoted));
    else if (bold !== undefined) parts.push(el("strong", {}, ...inline(bold)));
    else parts.push(el("em", {}, italic));
    last = match.index + whole.length;
  }
  parts.push(text.slice(last));
  return parts.filter((part) => part !== "");
}
