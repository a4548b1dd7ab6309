// What a model costs and does here, before it is pulled or run: the numbers of /api/ft/plan and fit.

import { badge, el } from "/ui/dom.js";
import { bytes, parameters, percent } from "/ui/format.js";

// The plan of a pull. {} = it is under way already.
export function pullPlan(plan) {
  const rows = [origin(plan), download(plan), disk(plan)];
  if (plan.forecast) rows.push(...memoryRows(plan.forecast));
  else if (plan.note) rows.push(row("Memory", `not known yet: ${plan.note}`));
  if (plan.unbuilt) rows.push(row("Not yet", `this family cannot run: ${plan.unbuilt}`, badge("not built", "bad")));
  return el("dl", { class: "plan" }, ...rows.flat());
}

// The forecast of an installed model.
export function forecast(answer) {
  return el("dl", { class: "plan" }, ...memoryRows(answer).flat());
}

// "" or why pulling it is no use on this machine.
export function objection(plan) {
  if (plan.unbuilt) return "It can be fetched, but not run: its family is not built.";
  if (plan.fits_disk === false) return "The disk is too small for it.";
  if (plan.forecast && plan.forecast.fits === false) return `It does not fit in memory: ${plan.forecast.reason}`;
  return "";
}

function origin(plan) {
  const words = [];
  if (plan.total_params) {
    const active = plan.active_params && plan.active_params !== plan.total_params;
    words.push(`${parameters(plan.total_params)} parameters${active ? `, ${parameters(plan.active_params)} active per token` : ""}`);
  }
  words.push(...[plan.family, plan.license].filter(Boolean));
  return row("Model", [words.join(", "), plan.origin ? el("span", { class: "dim" }, ` from ${plan.origin}`) : null]);
}

function download(plan) {
  const files = `${plan.num_files} file${plan.num_files === 1 ? "" : "s"}`;
  if (!plan.download_bytes) return row("Download", "nothing: it is on this machine");
  return row("Download", `${bytes(plan.download_bytes)} in ${files}${plan.resumes ? ", partly here already" : ""}`);
}

function disk(plan) {
  const text = `${bytes(plan.disk_bytes)} stay, ${bytes(plan.need_disk_bytes)} at most while converting; ${bytes(plan.free_disk_bytes)} free`;
  return row("Disk", text, plan.fits_disk ? badge("fits", "good") : badge("too small", "bad"));
}

function memoryRows(answer) {
  const here = answer.machine_ram_bytes ? `; this machine has ${bytes(answer.machine_ram_bytes)}` : "";
  const memory = row("Memory", `${bytes(answer.ram_bytes)} of RAM at ${answer.context_tokens} tokens of context${here}`, verdict(answer));
  const rows = [memory];
  if (!answer.fits && answer.reason) rows.push(row("Because", answer.reason));
  if (answer.vram_bytes) {
    const slots = answer.expert_slots ? `, ${answer.expert_slots} experts in slots (${percent(answer.cached_share, 1)})` : "";
    rows.push(row("GPU", `${bytes(answer.vram_bytes)}${slots}; ${answer.device}`));
  }
  if (answer.fits) rows.push(expected(answer));
  return rows;
}

function verdict(answer) {
  if (!answer.fits) return badge("too small", "bad");
  return answer.tier === "disk" ? badge("reads experts from disk: slow", "warn") : badge("fits", "good");
}

function expected(answer) {
  if (answer.tokens_per_s === undefined) return row("Speed", "not known: this machine is measured when a model is first loaded");
  const first = `first token after ${answer.ttft_s.toFixed(1)} s at ${answer.prompt_tokens} tokens`;
  return row("Speed", [`about ${answer.tokens_per_s.toFixed(1)} tokens/s, ${first}`, el("span", { class: "dim" }, " (computed from measured rates)")]);
}

function row(name, value, mark = null) {
  return [el("dt", {}, name), el("dd", {}, ...[value].flat(), mark ? " " : null, mark)];
}
