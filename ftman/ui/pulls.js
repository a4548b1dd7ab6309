// Pulls that this page has started. They go on while other pages are looked at.

import { ROUTES, objects } from "/ui/api.js";

const RATE_WINDOW_MS = 5000;

export const changed = new EventTarget();
export const pulls = new Map();

class Pull {
  constructor(name) {
    this.name = name;
    this.aborter = new AbortController();
    Object.assign(this, { state: "running", status: "starting", completed: 0, total: 0, error: null });
    this.points = [];
  }

  // Bytes per second over the last seconds; 0 when unknown.
  get rate() {
    if (this.points.length < 2) return 0;
    const [first, last] = [this.points[0], this.points[this.points.length - 1]];
    return last.at > first.at ? Math.max(0, (1000 * (last.completed - first.completed)) / (last.at - first.at)) : 0;
  }

  feed(step) {
    if (step.status !== this.status) this.points = [];
    this.status = step.status;
    this.total = step.total || 0;
    this.completed = step.completed || 0;
    const now = performance.now();
    this.points.push({ at: now, completed: this.completed });
    while (this.points.length > 2 && now - this.points[0].at > RATE_WINDOW_MS) this.points.shift();
  }

  async run() {
    try {
      const body = { model: this.name, stream: true };
      for await (const step of objects(ROUTES.pull, { body, signal: this.aborter.signal })) {
        this.feed(step);
        this.tell();
      }
      this.state = this.status === "success" ? "done" : "failed";
      if (this.state === "failed") this.error = new Error("The stream ended before the model was there.");
    } catch (error) {
      this.state = this.aborter.signal.aborted ? "cancelled" : "failed";
      this.error = this.aborter.signal.aborted ? null : error;
    }
    this.tell();
  }

  cancel() {
    this.aborter.abort();
  }

  tell() {
    changed.dispatchEvent(new CustomEvent("pull", { detail: this }));
  }
}

// Starts a pull, or takes up the one that runs. What an earlier one fetched is used.
export function start(name) {
  const known = pulls.get(name);
  if (known && known.state === "running") return known;
  const pull = new Pull(name);
  pulls.set(name, pull);
  pull.run();
  pull.tell();
  return pull;
}

export function forget(pull) {
  pulls.delete(pull.name);
  pull.tell();
}

export function anyRunning() {
  return [...pulls.values()].some((pull) => pull.state === "running");
}

// A pull ends when nobody watches it any more, so leaving the console ends it.
window.addEventListener("beforeunload", (event) => {
  if (anyRunning()) event.preventDefault();
});
