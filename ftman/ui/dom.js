// Makes elements. Text from outside only ever becomes a text node: nothing here parses HTML.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "max", "selected"]);

// el("button", {class: "main", onclick: act}, "Pull", otherNode, null)
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) node[name] = value;
    else if (value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...present(children));
  return node;
}

// Puts other children in the place of what a node holds.
export function fill(node, ...children) {
  node.replaceChildren(...present(children));
  return node;
}

function present(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}

export function button(text, onclick, kind = "", label = "") {
  return el("button", { type: "button", class: kind, onclick, "aria-label": label || null }, text);
}

export function badge(text, kind = "") {
  return el("span", { class: `badge ${kind}`.trim() }, text);
}

export function heading(text, ...rest) {
  return el("div", { class: "head" }, el("h1", { tabindex: "-1" }, text), ...rest);
}

// What went wrong, and what to do next.
export function trouble(error, ...actions) {
  return el(
    "div",
    { class: "trouble", role: "alert" },
    el("p", {}, error.message),
    error.hint ? el("p", { class: "hint" }, error.hint) : null,
    actions.length ? el("p", { class: "actions" }, ...actions) : null,
  );
}

// Tells a screen reader what the eye sees anyway.
export function say(text) {
  document.getElementById("said").textContent = text;
}

// Asks before something that cannot be undone; true where the answer is yes.
export function confirmed(question, detail, yes) {
  return new Promise((resolve) => {
    const answer = (value) => () => {
      dialog.close();
      resolve(value);
    };
    const dialog = el(
      "dialog",
      { "aria-labelledby": "question", oncancel: () => resolve(false), onclose: () => dialog.remove() },
      el("h2", { id: "question" }, question),
      el("p", {}, detail),
      el(
        "p",
        { class: "actions" },
        button("Keep it", answer(false)),
        button(yes, answer(true), "danger"),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
