// The page of memory: how each loaded model divides it, and what its experts do, once a second.

import { ROUTES, ask, objects } from "/ui/api.js";
import { badge, button, el, fill, heading, say, trouble } from "/ui/dom.js";
import { ago, bytes, percent, whole } from "/ui/format.js";

export const TITLE = "Memory";
const PAGE_TOKENS = 16;
const POINTS = 60;
const RETRY_MS = 2000;

export function open(main) {
  const page = new MemoryPage();
  main.append(page.root);
  page.watch();
  return () => page.close();
}

class MemoryPage {
  constructor() {
    this.cards = new Map();
    this.list = el("div", { class: "cards", "aria-busy": "true" });
    this.problem = el("div");
    this.queue = el("ul", { class: "list" });
    this.waiting = el("section", { "aria-labelledby": "waiting", hidden: true }, el("h2", { id: "waiting" }, "Waiting requests"), this.queue);
    this.root = el("div", {}, heading("Memory"), this.problem, this.list, this.waiting);
    this.closed = false;
    this.onSight = () => (document.hidden ? this.aborter?.abort() : this.watch());
    document.addEventListener("visibilitychange", this.onSight);
  }

  close() {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.onSight);
    this.aborter?.abort();
  }

  // One request while the page is seen; a new one when it breaks.
  async watch() {
    if (this.closed || document.hidden || this.watching) return;
    this.watching = true;
    this.aborter = new AbortController();
    const { signal } = this.aborter;
    try {
      for await (const state of objects(ROUTES.watch, { query: { follow: "1" }, signal })) {
        if (this.problem.firstChild) fill(this.problem);
        this.show(state);
      }
    } catch (error) {
      if (!signal.aborted) fill(this.problem, trouble(error));
    }
    this.watching = false;
    if (!this.closed && !document.hidden) setTimeout(() => this.watch(), RETRY_MS);
  }

  show({ ps, experts, queue }) {
    this.waiting.hidden = !queue.queue.length;
    fill(this.queue, ...queue.queue.map(waitingRow));
    const inside = new Map(experts.models.map((model) => [model.name, model]));
    const names = new Set(ps.models.map((model) => model.name));
    for (const [name, card] of this.cards) {
      if (names.has(name)) continue;
      card.root.remove();
      this.cards.delete(name);
    }
    for (const model of ps.models) {
      let card = this.cards.get(model.name);
      if (!card) {
        if (!this.cards.size) fill(this.list);
        card = new Card(model.name);
        this.cards.set(model.name, card);
        this.list.append(card.root);
      }
      card.show(model, inside.get(model.name));
    }
    if (!this.cards.size && !this.list.querySelector(".empty")) fill(this.list, this.nothing());
    this.list.setAttribute("aria-busy", "false");
  }

  nothing() {
    return el(
      "div",
      { class: "empty" },
      el("p", { class: "lead" }, "No model is loaded."),
      el("p", {}, "A model is loaded by the first message to it, and leaves when it has been idle for a while."),
      el("p", { class: "actions" }, el("a", { class: "button main", href: "#/chat" }, "To the chat")),
    );
  }
}

function waitingRow(request) {
  const text = `${request.position}. ${request.model}, ${Math.round(request.wait_s)} s: ${request.reason}`;
  return el("li", { class: "facts" }, text);
}

class Card {
  constructor(name) {
    this.name = name;
    this.before = null;
    this.rates = [];
    this.state = el("span");
    this.facts = el("p", { class: "facts" });
    this.loading = el("progress", { "aria-label": `Loading ${name}`, hidden: true });
    this.bar = el("div", { class: "split", "aria-hidden": "true" });
    this.legend = el("ul", { class: "legend", "aria-label": "Parts of the memory" });
    this.parts = new Map();
    this.experts = el("dl", { class: "plan" });
    this.values = new Map();
    this.graph = el("div", { class: "graph", role: "img", hidden: true });
    this.problem = el("div");
    this.slots = el("input", { type: "number", min: "0", step: "1", id: `slots-${name}`, required: true });
    this.divide = el(
      "form",
      {
        class: "inline",
        hidden: true,
        onsubmit: (event) => {
          event.preventDefault();
          this.setSlots();
        },
      },
      el("label", { for: `slots-${name}` }, "Expert slots "),
      this.slots,
      el("button", {}, "Change"),
    );
    this.root = el(
      "section",
      { class: "card", "aria-label": name },
      el("div", { class: "row" }, el("div", { class: "grow" }, el("h2", {}, name, " ", this.state), this.facts), el("p", { class: "actions" }, button("Unload", () => this.unload(), "", `Unload ${name}`))),
      this.loading,
      this.bar,
      this.legend,
      this.experts,
      this.graph,
      this.divide,
      this.problem,
    );
  }

  show(model, inside) {
    const state = model.ft?.state || "ready";
    if (this.state.textContent !== state) fill(this.state, badge(state, state === "ready" ? "good" : ""));
    const until = model.ft?.forever ? "stays loaded" : `unloads ${ago(model.expires_at)} if idle`;
    const use = model.ft?.in_use ? `${model.ft.in_use} request${model.ft.in_use === 1 ? "" : "s"} running` : until;
    this.facts.textContent = [bytes(model.size), `context ${whole(model.context_length)} tokens`, inside?.device || "", use].filter(Boolean).join("  ·  ");
    const loading = state === "loading" && model.ft.total_bytes > 0;
    this.loading.hidden = !loading;
    if (loading) Object.assign(this.loading, { max: model.ft.total_bytes, value: model.ft.loaded_bytes });
    if (inside) this.showInside(inside);
  }

  showInside(inside) {
    const { stats, cache } = inside;
    this.split([
      ["Weights", "weights", inside.weights_bytes],
      ["Context (KV)", "kv", inside.kv_bytes],
      ["States", "states", cache ? cache.checkpoints * cache.checkpoint_bytes : 0],
      ["Expert slots", "slots", stats ? stats.slots * stats.slot_bytes : 0],
    ]);
    const speed = inside.tokens_per_s ? `${inside.tokens_per_s.toFixed(1)} tokens/s since it was loaded` : "nothing written yet";
    const last = inside.last_step_s === null ? "" : `, last step ${inside.last_step_s.toFixed(1)} s ago`;
    this.value("Speed", speed + last);
    this.showExperts(stats, inside);
    if (cache?.enabled && cache.looked_up_tokens) {
      const kept = `${whole(cache.pages * PAGE_TOKENS)} tokens kept`;
      this.value("Prefixes", `${kept}; ${percent(cache.hit_tokens, cache.looked_up_tokens)} of ${whole(cache.looked_up_tokens)} prompt tokens were reused`);
    } else if (cache && !cache.enabled) this.value("Prefixes", "not kept");
  }

  showExperts(stats, inside) {
    if (!stats) return this.value("Experts", "none: every part of this model takes part in every token");
    if (!stats.slots) return this.value("Experts", `${whole(stats.total)}, all computed on the CPU`);
    const asked = stats.hits + stats.misses;
    this.value("Experts", `${whole(stats.slots)} slots for ${whole(stats.total)} experts (${percent(stats.slots, stats.total)}), ${whole(stats.resident)} filled, strategy ${stats.strategy}`);
    if (asked) this.value("Hit rate", `${percent(stats.hits, asked)} of ${whole(asked)} since it was loaded`);
    const served = stats.fills + stats.on_cpu;
    if (served) this.value("Misses", `${percent(stats.fills, served)} copied to a slot, ${percent(stats.on_cpu, served)} computed on the CPU`);
    this.point(stats);
    this.offerSlots(stats);
    if (!stats.link_bytes) return undefined;
    const link = inside.link_bytes_per_s === null ? `${bytes(stats.link_bytes)} in all (emulated, no rate)` : `${bytes(inside.link_bytes_per_s)}/s while it works, ${bytes(stats.link_bytes)} in all`;
    return this.value("Link", link);
  }

  offerSlots(stats) {
    if (!this.divide.hidden) return;
    this.divide.hidden = false;
    Object.assign(this.slots, { max: stats.total, value: stats.slots });
  }

  // One bar of the graph for each second in which experts were asked for.
  point(stats) {
    const before = this.before;
    this.before = stats;
    if (!before) return;
    const [hits, misses] = [stats.hits - before.hits, stats.misses - before.misses];
    if (hits + misses <= 0) return;
    this.rates = [...this.rates, hits / (hits + misses)].slice(-POINTS);
    this.graph.hidden = false;
    const bars = this.rates.map((rate) => {
      const bar = el("span");
      bar.style.height = `${Math.max(2, Math.round(100 * rate))}%`;
      return bar;
    });
    fill(this.graph, ...bars);
    this.graph.setAttribute("aria-label", `Hit rate of the last seconds, now ${percent(hits, hits + misses)}`);
    this.value("Hit rate now", percent(hits, hits + misses));
  }

  split(parts) {
    const total = parts.reduce((sum, [, , size]) => sum + size, 0);
    for (const [name, kind, size] of parts) {
      let part = this.parts.get(name);
      if (!part) {
        const number = el("span", { class: "number" });
        part = { bar: el("span", { class: kind }), number, item: el("li", {}, el("span", { class: `swatch ${kind}` }), `${name} `, number) };
        this.parts.set(name, part);
        this.bar.append(part.bar);
        this.legend.append(part.item);
      }
      part.bar.style.flexGrow = String(size);
      part.bar.hidden = part.item.hidden = !size;
      part.number.textContent = `${bytes(size)} (${percent(size, total)})`;
    }
  }

  value(name, text) {
    let cell = this.values.get(name);
    if (!cell) {
      cell = el("dd");
      this.values.set(name, cell);
      this.experts.append(el("dt", {}, name), cell);
    }
    if (cell.textContent !== text) cell.textContent = text;
  }

  setSlots() {
    return this.act(async () => {
      const state = await ask(ROUTES.divide, { body: { model: this.name, expert_slots: Number(this.slots.value) } });
      say(`${this.name} has ${state.expert_slots} expert slots now`);
    });
  }

  unload() {
    return this.act(async () => {
      await ask(ROUTES.load, { body: { model: this.name, prompt: "", keep_alive: 0, stream: false } });
      say(`${this.name} is being unloaded`);
    });
  }

  async act(what) {
    fill(this.problem);
    try {
      await what();
    } catch (error) {
      fill(this.problem, trouble(error));
    }
  }
}
