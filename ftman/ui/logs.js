// The page of logs: one log, followed as it grows.

import { ROUTES, ask, texts } from "/ui/api.js";
import { button, el, fill, heading, trouble } from "/ui/dom.js";
import { ago, bytes } from "/ui/format.js";

export const TITLE = "Logs";
const MAX_LINES = 5000;
const NEAR_END_PX = 60;
const RETRY_MS = 2000;

export function open(main, params) {
  const page = new LogsPage();
  main.append(page.root);
  page.load(params.get("name") || "");
  return () => page.close();
}

class LogsPage {
  constructor() {
    this.choice = el("select", { id: "log", onchange: () => this.follow() });
    this.filter = el("input", { type: "search", id: "filter", placeholder: "Lines that hold...", autocomplete: "off", oninput: () => this.refilter() });
    this.lines = el("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Lines of the log" });
    this.state = el("p", { class: "dim", role: "status" });
    this.controls = el(
      "div",
      { class: "controls" },
      el("label", { class: "field", for: "log" }, "Log ", this.choice),
      el("label", { class: "field", for: "filter" }, "Filter ", this.filter),
      button("To the end", () => this.toEnd()),
    );
    this.view = el("div", { class: "logview" }, this.controls, this.lines, this.state);
    this.problem = el("div");
    this.root = el("div", { class: "logs" }, heading("Logs"), this.problem, this.view);
    this.run = 0;
  }

  close() {
    this.run += 1;
    this.aborter?.abort();
  }

  async load(wanted) {
    try {
      const { folder, logs } = await ask(ROUTES.logs);
      if (!logs.length) {
        fill(this.root.querySelector(".logview"), this.nothing(folder));
        return;
      }
      fill(this.choice, ...logs.map((log) => el("option", { value: log.name, selected: log.name === wanted }, this.label(log))));
      this.follow();
    } catch (error) {
      fill(this.problem, trouble(error, button("Try again", () => this.load(wanted))));
    }
  }

  label(log) {
    return `${log.name} (${bytes(log.size_bytes)}, ${ago(new Date(log.modified_wall_s * 1000).toISOString())})`;
  }

  nothing(folder) {
    return el(
      "div",
      { class: "empty" },
      el("p", { class: "lead" }, "There is no log file yet."),
      el("p", {}, "Engines write theirs to ", el("code", {}, folder), " when they are started. A manager that was started by hand writes to its terminal; one that starts at login, to the journal:"),
      el("p", {}, el("code", {}, "journalctl --user -u ft -f")),
    );
  }

  async follow() {
    this.run += 1;
    const mine = this.run;
    this.aborter?.abort();
    this.aborter = new AbortController();
    const { signal } = this.aborter;
    this.rest = "";
    fill(this.lines);
    this.state.textContent = "Following";
    const options = { tail: this.choice.value, query: { follow: "1", lines: "1000" }, signal };
    try {
      for await (const text of texts(ROUTES.log, options)) {
        if (this.run !== mine) return;
        fill(this.problem);
        this.add(text);
      }
    } catch (error) {
      if (!signal.aborted) fill(this.problem, trouble(error));
    }
    if (this.run !== mine) return;
    this.state.textContent = "Not connected; trying again";
    setTimeout(() => this.run === mine && this.follow(), RETRY_MS);
  }

  add(text) {
    const atEnd = this.lines.scrollHeight - this.lines.clientHeight - this.lines.scrollTop < NEAR_END_PX;
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    const wanted = this.filter.value.trim().toLowerCase();
    this.lines.append(...lines.map((line) => this.line(line, wanted)));
    while (this.lines.childElementCount > MAX_LINES) this.lines.firstChild.remove();
    if (atEnd) this.toEnd();
  }

  line(text, wanted) {
    const level = text.match(/ (ERROR|CRITICAL|WARNING|DEBUG) /)?.[1].toLowerCase() || "";
    return el("span", { class: `line ${level}`.trim(), hidden: wanted !== "" && !text.toLowerCase().includes(wanted) }, `${text}\n`);
  }

  refilter() {
    const wanted = this.filter.value.trim().toLowerCase();
    for (const line of this.lines.children) line.hidden = wanted !== "" && !line.textContent.toLowerCase().includes(wanted);
    this.toEnd();
  }

  toEnd() {
    this.lines.scrollTop = this.lines.scrollHeight;
  }
}
