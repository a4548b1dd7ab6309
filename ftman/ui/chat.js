// The page of one conversation. It is kept, and goes on being written, while other pages are shown.

import { ROUTES, ask, objects } from "/ui/api.js";
import { button, el, fill, heading, say, trouble } from "/ui/dom.js";
import { whole } from "/ui/format.js";
import * as markdown from "/ui/markdown.js";

export const TITLE = "Chat";
const MODEL = "ft.model";
const NEAR_END_PX = 80;
let page = null;

export function open(main, params) {
  page ||= new ChatPage();
  main.append(page.root);
  page.load(params.get("model") || "");
  return () => {};
}

class ChatPage {
  constructor() {
    this.turns = [];
    this.running = null;
    this.abilities = new Map();
    this.model = el("select", { id: "model", onchange: () => this.chosen() });
    this.think = el(
      "select",
      { id: "think" },
      ...[["", "as the model likes"], ["on", "yes"], ["off", "no"]].map(([value, text]) => el("option", { value }, text)),
    );
    this.thinkLabel = el("label", { class: "field", hidden: true }, "Think first ", this.think);
    this.system = el("textarea", { id: "system", rows: "2", placeholder: "How the model should behave (optional)" });
    this.log = el("div", { class: "turns", role: "log", "aria-label": "Conversation", tabindex: "0" });
    this.input = el("textarea", {
      id: "message", rows: "1", placeholder: "Write a message", oninput: () => this.grow(), onkeydown: (event) => this.key(event),
    });
    this.send = el("button", { class: "main" }, "Send");
    this.stop = button("Stop", () => this.running?.abort(), "danger");
    this.stop.hidden = true;
    this.composer = el(
      "form",
      {
        class: "composer",
        onsubmit: (event) => {
          event.preventDefault();
          this.say();
        },
      },
      el("label", { class: "unseen", for: "message" }, "Message"),
      this.input,
      this.send,
      this.stop,
    );
    this.notice = el("div");
    this.fresh = button("New chat", () => this.clear());
    this.root = el(
      "div",
      { class: "chat" },
      heading("Chat", el("label", { class: "field", for: "model" }, el("span", { class: "unseen" }, "Model "), this.model), this.thinkLabel, this.fresh),
      el("details", { class: "system" }, el("summary", {}, "System prompt"), el("label", { class: "unseen", for: "system" }, "System prompt"), this.system),
      this.notice,
      this.log,
      this.composer,
      el("p", { class: "dim keys" }, "Enter sends, Shift+Enter begins a new line, Esc stops an answer."),
    );
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) this.running.abort();
    });
    this.greet();
  }

  async load(wanted) {
    try {
      const { models } = await ask(ROUTES.tags);
      const chats = models.filter((model) => !model.capabilities || model.capabilities.includes("completion"));
      this.abilities = new Map(chats.map((model) => [model.name, model.capabilities || []]));
      fill(this.notice, chats.length ? null : this.noModel());
      this.composer.hidden = !chats.length;
      this.root.classList.toggle("nomodel", !chats.length);
      const choice = this.known(wanted) || this.known(this.model.value) || this.known(localStorage.getItem(MODEL)) || chats[0]?.name;
      fill(this.model, ...chats.map((model) => el("option", { value: model.name, selected: model.name === choice }, model.name)));
      this.chosen();
      if (chats.length) this.input.focus();
    } catch (error) {
      fill(this.notice, trouble(error, button("Try again", () => this.load(wanted))));
    }
  }

  // The installed name that a link means: with its tag or without.
  known(name) {
    if (!name) return "";
    return this.abilities.has(name) ? name : [...this.abilities.keys()].find((each) => each.startsWith(`${name}:`)) || "";
  }

  noModel() {
    return el(
      "div",
      { class: "empty" },
      el("p", { class: "lead" }, "There is no model to talk with yet."),
      el("p", { class: "actions" }, el("a", { class: "button main", href: "#/models" }, "Get a model")),
    );
  }

  chosen() {
    this.thinkLabel.hidden = !this.abilities.get(this.model.value)?.includes("thinking");
    if (this.model.value) localStorage.setItem(MODEL, this.model.value);
  }

  greet() {
    fill(this.log, el("p", { class: "dim lead" }, "Ask something. The conversation stays in this tab only."));
  }

  clear() {
    this.running?.abort();
    this.turns = [];
    this.greet();
    this.input.focus();
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.say();
  }

  grow() {
    this.input.rows = Math.min(10, this.input.value.split("\n").length);
  }

  say() {
    const text = this.input.value.trim();
    if (!text || this.running) return;
    if (!this.turns.length) fill(this.log);
    this.input.value = "";
    this.grow();
    const turn = new Turn("user", "You");
    turn.add(text, "");
    turn.paint();
    this.turns.push(turn);
    this.log.append(turn.root);
    this.answer();
  }

  async answer() {
    const model = this.model.value;
    const turn = new Turn("assistant", model);
    const messages = this.messages();
    this.turns.push(turn);
    this.log.append(turn.root);
    this.scroll(true);
    this.busy(new AbortController());
    const body = { model, messages, stream: true };
    if (!this.thinkLabel.hidden && this.think.value) body.think = this.think.value === "on";
    turn.wait();
    try {
      await this.read(turn, body, this.running.signal);
    } catch (error) {
      if (this.running.signal.aborted) turn.note("stopped");
      else turn.fail(error, button("Try again", () => this.again(turn)));
    }
    turn.settle();
    this.busy(null);
    this.scroll(false);
    say(turn.text ? "The answer is complete" : "There is no answer");
  }

  async read(turn, body, signal) {
    let done = false;
    for await (const piece of objects(ROUTES.chat, { body, signal })) {
      turn.add(piece.message?.content || "", piece.message?.thinking || "");
      turn.paintSoon(() => this.scroll(false));
      if (!piece.done) continue;
      done = true;
      turn.finish(piece);
    }
    if (!done) throw new Error("The answer broke off.");
  }

  again(turn) {
    if (this.running) return;
    this.turns.splice(this.turns.indexOf(turn), 1);
    turn.root.remove();
    this.answer();
  }

  messages() {
    const system = this.system.value.trim();
    const said = this.turns.filter((turn) => turn.text || turn.thinking).map((turn) => turn.message());
    return system ? [{ role: "system", content: system }, ...said] : said;
  }

  busy(aborter) {
    this.running = aborter;
    this.send.hidden = aborter !== null;
    this.stop.hidden = aborter === null;
    this.model.disabled = aborter !== null;
    this.log.setAttribute("aria-busy", String(aborter !== null));
  }

  // Follows the text, unless its reader has gone back.
  scroll(always) {
    const end = this.log.scrollHeight - this.log.clientHeight;
    if (always || end - this.log.scrollTop < NEAR_END_PX) this.log.scrollTop = end;
  }
}

class Turn {
  constructor(role, name) {
    this.role = role;
    this.text = "";
    this.thinking = "";
    this.frame = 0;
    this.body = el("div", { class: "text" });
    this.thoughts = el("div", { class: "thoughts" });
    this.summary = el("summary", {}, "Thinking...");
    this.folded = el("details", { class: "thinking", hidden: true }, this.summary, this.thoughts);
    this.foot = el("p", { class: "facts" });
    this.after = el("div");
    this.root = el("article", { class: `turn ${role}` }, el("p", { class: "who" }, name), this.folded, this.body, this.foot, this.after);
  }

  message() {
    const value = { role: this.role, content: this.text };
    return this.thinking ? { ...value, thinking: this.thinking } : value;
  }

  add(text, thinking) {
    this.text += text;
    this.thinking += thinking;
    if (text || thinking) this.heard();
  }

  wait() {
    const from = performance.now();
    const tick = () => {
      const seconds = Math.round((performance.now() - from) / 1000);
      this.foot.textContent = seconds < 2 ? "..." : `Waiting for the first word, ${seconds} s. A model that is not loaded is loaded first.`;
    };
    tick();
    this.timer = setInterval(tick, 1000);
  }

  heard() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = 0;
    this.foot.textContent = "";
  }

  paintSoon(then) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
      then();
    });
  }

  paint() {
    if (this.role === "user") this.body.textContent = this.text;
    else markdown.show(this.body, this.text);
    this.folded.hidden = !this.thinking.trim();
    this.thoughts.textContent = this.thinking.trim();
    if (this.text.trim()) this.summary.textContent = "Thinking";
  }

  finish(piece) {
    this.heard();
    const parts = [];
    if (piece.eval_count && piece.eval_duration) {
      parts.push(`${whole(piece.eval_count)} tokens`, `${((1e9 * piece.eval_count) / piece.eval_duration).toFixed(1)} tokens/s`);
    }
    if (piece.prompt_eval_count) parts.push(`${whole(piece.prompt_eval_count)} tokens read`);
    if (piece.load_duration > 1e8) parts.push(`loaded in ${(piece.load_duration / 1e9).toFixed(1)} s`);
    if (piece.done_reason === "length") parts.push("cut at the length limit");
    this.foot.textContent = parts.join("  ·  ");
    if (piece.warning) this.after.append(el("p", { class: "warnline" }, piece.warning));
  }

  note(text) {
    this.heard();
    this.foot.textContent = text;
  }

  fail(error, again) {
    this.heard();
    fill(this.after, trouble(error, again));
  }

  // The last words: nothing of this turn changes any more.
  settle() {
    this.heard();
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.paint();
    this.summary.textContent = "Thinking";
  }
}
