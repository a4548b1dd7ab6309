// The list of pulls on the page of models: ours with progress, others' and interrupted ones by name.

import { ROUTES, ask } from "/ui/api.js";
import { button, el, fill, say, trouble } from "/ui/dom.js";
import { bytes, clock, percent } from "/ui/format.js";
import { changed, forget, pulls, start } from "/ui/pulls.js";

const UNFINISHED = new Set(["paused", "interrupted", "failed", "cancelled"]);
const MAX_UNFINISHED = 5;

export class PullList {
  constructor() {
    this.ours = el("ul", { class: "list" });
    this.others = el("ul", { class: "list" });
    this.root = el("section", { "aria-label": "Pulls", hidden: true }, el("h2", {}, "Pulls"), this.ours, this.others);
    this.rows = new Map();
    this.onPull = (event) => this.show(event.detail);
    changed.addEventListener("pull", this.onPull);
    for (const pull of pulls.values()) this.show(pull);
  }

  close() {
    changed.removeEventListener("pull", this.onPull);
  }

  // What the manager remembers of other pulls. names: installed models.
  async load(names) {
    let jobs = [];
    try {
      ({ jobs } = await ask(ROUTES.jobs));
    } catch {
      return; // the rest of the page tells of it
    }
    const latest = new Map();
    for (const job of jobs) if (!latest.has(job.name)) latest.set(job.name, job);
    const shown = [...latest.values()].filter((job) => !pulls.has(job.name) && !names.has(job.name));
    const running = shown.filter((job) => job.state === "running");
    const unfinished = shown.filter((job) => UNFINISHED.has(job.state)).slice(0, MAX_UNFINISHED);
    fill(this.others, [...running, ...unfinished].map((job) => this.other(job)));
    this.reveal();
  }

  other(job) {
    const running = job.state === "running";
    const done = job.total ? ` at ${percent(job.completed, job.total)}` : "";
    const text = running ? `being pulled elsewhere${done}` : `${job.state}${done}${job.error ? `: ${job.error}` : ""}`;
    const row = el(
      "li",
      { class: "model" },
      el(
        "div",
        { class: "row" },
        el("div", { class: "grow" }, el("h3", {}, job.name), el("p", { class: "facts" }, text)),
        el(
          "p",
          { class: "actions" },
          button(running ? "Watch" : "Resume", () => {
            row.remove();
            start(job.name);
          }, "", `${running ? "Watch" : "Resume"} ${job.name}`),
          running ? button("Cancel", () => this.cancelOther(job, row), "danger", `Cancel ${job.name}`) : null,
        ),
      ),
    );
    return row;
  }

  async cancelOther(job, row) {
    try {
      await ask(ROUTES.cancelJob, { tail: job.id });
      row.remove();
      this.reveal();
      say(`the pull of ${job.name} was cancelled`);
    } catch (error) {
      row.append(trouble(error));
    }
  }

  show(pull) {
    if (!pulls.has(pull.name)) {
      this.rows.get(pull.name)?.root.remove();
      this.rows.delete(pull.name);
      this.reveal();
      return;
    }
    let row = this.rows.get(pull.name);
    if (!row) {
      row = new PullRow(pull.name);
      this.rows.set(pull.name, row);
      this.ours.prepend(row.root);
      this.reveal();
      row.root.scrollIntoView({ block: "nearest" });
    }
    row.show(pull);
  }

  reveal() {
    this.root.hidden = !this.ours.childElementCount && !this.others.childElementCount;
  }
}

class PullRow {
  constructor(name) {
    this.name = name;
    this.state = "";
    this.status = el("p", { class: "facts" });
    this.bar = el("progress", { "aria-label": `Progress of ${name}` });
    this.numbers = el("p", { class: "facts numbers" });
    this.actions = el("p", { class: "actions" });
    this.after = el("div");
    this.root = el(
      "li",
      { class: "model" },
      el("div", { class: "row" }, el("div", { class: "grow" }, el("h3", {}, name), this.status), this.actions),
      this.bar,
      this.numbers,
      this.after,
    );
  }

  show(pull) {
    if (pull.state !== this.state) this.turn(pull);
    if (pull.state !== "running") return;
    this.status.textContent = pull.status;
    if (!pull.total) {
      this.bar.removeAttribute("value");
      this.numbers.textContent = "";
      return;
    }
    Object.assign(this.bar, { max: pull.total, value: pull.completed });
    const parts = [percent(pull.completed, pull.total), `${bytes(pull.completed)} of ${bytes(pull.total)}`];
    if (pull.rate && pull.completed < pull.total) {
      parts.push(`${bytes(pull.rate)}/s`, `${clock((pull.total - pull.completed) / pull.rate)} left`);
    }
    this.numbers.textContent = parts.join("  ·  ");
  }

  turn(pull) {
    this.state = pull.state;
    const running = pull.state === "running";
    this.bar.hidden = this.numbers.hidden = !running;
    fill(this.after);
    if (running) {
      fill(this.actions, button("Cancel", () => pull.cancel(), "danger", `Cancel ${this.name}`));
      say(`pulling ${this.name}`);
      return;
    }
    const away = button("Dismiss", () => forget(pull), "", `Dismiss ${this.name}`);
    const again = button("Resume", () => start(this.name), "main", `Resume ${this.name}`);
    const place = this.name.includes("://"); // its name as a model is another
    const chat = place ? null : el("a", { class: "button main", href: `#/chat?model=${encodeURIComponent(this.name)}` }, "Chat");
    fill(this.actions, pull.state === "done" ? chat : again, away);
    const words = { done: "Ready.", cancelled: "Cancelled. What was fetched is kept.", failed: "Failed. What was fetched is kept." };
    this.status.textContent = words[pull.state];
    if (pull.error) fill(this.after, trouble(pull.error));
    say(`${this.name}: ${words[pull.state]}`);
  }
}
