// The page of models: what is installed, what is being fetched, what there is to fetch.

import { ROUTES, ask, objects } from "/ui/api.js";
import { badge, button, confirmed, el, fill, heading, say, trouble } from "/ui/dom.js";
import { ago, bytes, parameters } from "/ui/format.js";
import { forecast, objection, pullPlan } from "/ui/plan.js";
import { PullList } from "/ui/pull_list.js";
import { changed, start } from "/ui/pulls.js";

export const TITLE = "Models";
const FIRST_MODEL = "smollm2-moe";
const SEARCH_PAUSE_MS = 150;
const SHOWN = 40;

export function open(main) {
  const page = new ModelsPage();
  main.append(page.root);
  page.load();
  return () => page.close();
}

class ModelsPage {
  constructor() {
    this.installed = el("ul", { class: "list", "aria-busy": "true" });
    this.count = el("span", { class: "dim" });
    this.pullList = new PullList();
    this.input = el("input", {
      type: "search", id: "search", placeholder: "Name, family, or hf.co/org/repo", autocomplete: "off",
      spellcheck: "false", oninput: () => this.searchSoon(),
    });
    this.found = el("ul", { class: "list" });
    this.foundCount = el("p", { class: "dim", role: "status" });
    this.names = new Set();
    this.root = el(
      "div",
      {},
      heading("Models"),
      this.pullList.root,
      el("section", { "aria-labelledby": "installed" }, el("h2", { id: "installed" }, "On this machine ", this.count), this.installed),
      el(
        "section",
        { "aria-labelledby": "more" },
        el("h2", { id: "more" }, "Get a model"),
        el("label", { class: "unseen", for: "search" }, "Search the index"),
        this.input,
        this.foundCount,
        this.found,
      ),
    );
    this.onPull = (event) => {
      if (event.detail.state === "done") this.loadInstalled();
    };
    changed.addEventListener("pull", this.onPull);
  }

  close() {
    changed.removeEventListener("pull", this.onPull);
    clearTimeout(this.timer);
    this.pullList.close();
  }

  async load() {
    await this.loadInstalled();
    await Promise.all([this.search(), this.pullList.load(this.names)]);
  }

  async loadInstalled() {
    try {
      const { models } = await ask(ROUTES.tags);
      this.names = new Set(models.map((model) => model.name));
      this.count.textContent = models.length ? `(${models.length})` : "";
      fill(this.installed, models.length ? models.map((model) => installedRow(model, this)) : this.nothing());
    } catch (error) {
      fill(this.installed, el("li", {}, trouble(error, button("Try again", () => this.load()))));
    }
    this.installed.setAttribute("aria-busy", "false");
  }

  nothing() {
    return el(
      "li",
      { class: "empty" },
      el("p", { class: "lead" }, "No model is here yet."),
      el("p", {}, "Begin with a small mixture of experts that runs on any machine (92 MB):"),
      el("p", { class: "actions" }, button(`Pull ${FIRST_MODEL}`, () => start(FIRST_MODEL), "main")),
      el("p", { class: "dim" }, "or in a terminal: ", el("code", {}, `ft pull ${FIRST_MODEL}`)),
    );
  }

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.search(), SEARCH_PAUSE_MS);
  }

  async search() {
    const text = this.input.value.trim();
    let models;
    try {
      ({ models } = await ask(ROUTES.search, { query: { q: text } }));
    } catch (error) {
      fill(this.found, el("li", {}, trouble(error)));
      return;
    }
    if (text !== this.input.value.trim()) return; // a later search is under way
    const rows = models.slice(0, SHOWN).map((entry) => offer(entry, this.names));
    if (text && (text.includes("/") || !models.length)) rows.unshift(offer({ name: text, summary: "by this very name" }, this.names));
    fill(this.found, rows);
    const more = models.length > SHOWN ? `, the first ${SHOWN} are shown` : "";
    this.foundCount.textContent = models.length ? `${models.length} build${models.length === 1 ? "" : "s"} in the index${more}` : text ? "Not in the index." : "The index is empty.";
  }
}

function installedRow(model, page) {
  const panel = el("div", { class: "panel", hidden: true });
  const details = model.details || {};
  const facts = [
    bytes(model.size), details.parameter_size, details.quantization_level, details.family,
    details.context_length ? `${details.context_length.toLocaleString("en-US")} tokens of context` : "", ago(model.modified_at),
  ];
  const chats = !model.capabilities || model.capabilities.includes("completion");
  const name = model.name;
  const fit = button("Fit", null, "", `How ${name} fits on this machine`);
  const toggle = opener(fit, panel, () => showFit(panel, name));
  fit.addEventListener("click", toggle);
  return item(
    [
      el("h3", {}, name, " ", model.ft?.damaged ? badge("damaged: ft verify --repair", "bad") : null),
      factsLine(facts),
    ],
    [
      chats ? el("a", { class: "button main", href: `#/chat?model=${encodeURIComponent(name)}`, "aria-label": `Chat with ${name}` }, "Chat") : null,
      fit,
      button("Remove", () => remove(model, page), "danger", `Remove ${name}`),
    ],
    panel,
  );
}

// One model of a list: what it is, what can be done with it, and a panel that opens below.
function item(said, actions, panel) {
  return el(
    "li",
    { class: "model" },
    el("div", { class: "row" }, el("div", { class: "grow" }, ...said), el("p", { class: "actions" }, ...actions)),
    panel,
  );
}

function factsLine(facts) {
  return el("p", { class: "facts" }, facts.filter(Boolean).join("  ·  "));
}

async function remove(model, page) {
  const detail = `Its ${bytes(model.size)} are deleted unless another model shares them. To have it back it must be pulled again.`;
  if (!(await confirmed(`Remove ${model.name}?`, detail, "Remove it"))) return;
  try {
    await ask(ROUTES.remove, { body: { model: model.name } });
    say(`${model.name} was removed`);
    await page.loadInstalled();
  } catch (error) {
    page.installed.prepend(el("li", {}, trouble(error)));
  }
}

async function showFit(panel, name) {
  fill(panel, el("p", { class: "dim" }, "Reading the model's headers..."));
  try {
    fill(panel, forecast(await ask(ROUTES.fit, { body: { model: name } })));
  } catch (error) {
    const unmeasured = `${error.message} ${error.hint}`.includes("ft calibrate");
    const measure = unmeasured ? button("Measure this machine now", () => calibrate(panel, name), "main") : null;
    fill(panel, unmeasured ? trouble(new Error("This machine has not been measured yet."), measure) : trouble(error));
  }
}

async function calibrate(panel, name) {
  const line = el("p", { role: "status" }, "Measuring this machine, which takes some seconds...");
  const bar = el("progress", { "aria-label": "Measuring" });
  fill(panel, line, bar);
  try {
    for await (const step of objects(ROUTES.calibrate, { body: {} })) {
      line.textContent = `${step.status}...`;
      if (step.total) Object.assign(bar, { max: step.total, value: step.completed || 0 });
    }
    await showFit(panel, name);
  } catch (error) {
    fill(panel, trouble(error));
  }
}

function offer(entry, names) {
  const label = entry.tag ? `${entry.name}:${entry.tag}` : entry.name;
  const panel = el("div", { class: "panel", hidden: true });
  const cost = button("What it takes", null, "", `What ${label} takes`);
  cost.addEventListener("click", opener(cost, panel, () => showPlan(panel, label)));
  const active = entry.active_params && entry.active_params !== entry.total_params;
  const facts = [
    entry.bytes ? bytes(entry.bytes) : "",
    entry.total_params ? `${parameters(entry.total_params)}${active ? ` (${parameters(entry.active_params)} active)` : ""}` : "",
    entry.license,
    entry.format,
  ];
  return item(
    [
      el("h3", {}, label, " ", names.has(label) ? badge("installed", "good") : null),
      el("p", {}, entry.summary || ""),
      factsLine(facts),
    ],
    [cost],
    panel,
  );
}

async function showPlan(panel, name) {
  fill(panel, el("p", { class: "dim", role: "status" }, "Reading sizes and headers from its source..."));
  let plan;
  try {
    plan = await ask(ROUTES.plan, { body: { model: name } });
  } catch (error) {
    fill(panel, trouble(error, button("Try again", () => showPlan(panel, name))));
    return;
  }
  if (plan.up_to_date) {
    fill(panel, el("p", {}, `${name} is installed and up to date.`));
    return;
  }
  const against = plan.name ? objection(plan) : "";
  const pull = button(against ? "Pull it all the same" : "Pull", () => start(name), against ? "danger" : "main", `Pull ${name}`);
  fill(
    panel,
    plan.name ? pullPlan(plan) : el("p", {}, "It is being pulled right now; pull it here to watch."),
    against ? el("p", { class: "warnline" }, against) : null,
    el("p", { class: "actions" }, pull),
  );
}

// A button that opens and closes a panel, filled when it is opened.
function opener(control, panel, load) {
  control.setAttribute("aria-expanded", "false");
  return () => {
    panel.hidden = !panel.hidden;
    control.setAttribute("aria-expanded", String(!panel.hidden));
    if (!panel.hidden) load();
  };
}
