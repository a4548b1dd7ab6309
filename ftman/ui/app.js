// Which page is shown, the theme, the banner, the key: everything around the pages.

import { ROUTES, ask, onKeyNeeded } from "/ui/api.js";
import { button, el, fill } from "/ui/dom.js";
import * as chat from "/ui/chat.js";
import * as logs from "/ui/logs.js";
import * as memory from "/ui/memory.js";
import * as models from "/ui/models.js";

const PAGES = { models, chat, memory, logs };
const THEMES = ["system", "light", "dark"];
let close = null;

function show(focus = true) {
  const [, name = "", text = ""] = location.hash.match(/^#\/(\w+)\??(.*)$/) || [];
  const page = PAGES[name];
  if (!page) {
    location.replace("#/models");
    return;
  }
  if (close) close();
  for (const link of document.querySelectorAll("#pages a")) {
    const here = link.getAttribute("href") === `#/${name}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${page.TITLE} - ft`;
  document.body.dataset.page = name;
  const main = fill(document.getElementById("main"));
  close = page.open(main, new URLSearchParams(text));
  if (focus) main.querySelector("h1")?.focus();
}

function theme() {
  return document.documentElement.dataset.theme || "system";
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("ft.theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("ft.theme", next);
  }
  nameTheme();
}

function nameTheme() {
  document.getElementById("theme").textContent = `Theme: ${theme()}`;
}

let asking = null;

// One dialog for all requests that were refused at the same time.
function askForKey(wrong) {
  asking ||= new Promise((resolve) => {
    const input = el("input", { type: "password", id: "key", autocomplete: "off", required: true });
    const done = (value) => {
      asking = null;
      dialog.remove();
      resolve(value);
    };
    const form = el(
      "form",
      {
        method: "dialog",
        onsubmit: (event) => {
          event.preventDefault();
          done(input.value.trim());
        },
      },
      el("h2", {}, wrong ? "That key was not accepted" : "This server wants an API key"),
      el("label", { for: "key" }, "API key"),
      input,
      el("p", { class: "hint" }, "It is kept until this tab is closed, and sent to this server only."),
      el("p", { class: "actions" }, button("Not now", () => done("")), el("button", { class: "main" }, "Go on")),
    );
    const dialog = el("dialog", { oncancel: () => done("") }, form);
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

async function greet() {
  try {
    const status = await ask(ROUTES.status);
    fill(
      document.getElementById("foot"),
      `ft ${status.version} at ${status.settings.address}. Models in ${status.paths.models}`,
    );
  } catch (error) {
    const banner = document.getElementById("banner");
    fill(banner, `${error.message} ${error.hint || ""}`.trim());
    banner.hidden = false;
  }
}

onKeyNeeded(askForKey);
nameTheme();
document.getElementById("theme").addEventListener("click", nextTheme);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the page
  document.getElementById("main").focus();
});
window.addEventListener("hashchange", () => show());
show(false);
greet();
