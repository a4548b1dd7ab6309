// The manager's routes and how they are asked. Every route the console uses stands in ROUTES.

export const ROUTES = {
  status: ["GET", "/api/ft/status"],
  tags: ["GET", "/api/tags"],
  remove: ["DELETE", "/api/delete"],
  load: ["POST", "/api/generate"],
  chat: ["POST", "/api/chat"],
  search: ["GET", "/api/ft/search"],
  plan: ["POST", "/api/ft/plan"],
  fit: ["POST", "/api/ft/fit"],
  calibrate: ["POST", "/api/ft/calibrate"],
  pull: ["POST", "/api/pull"],
  jobs: ["GET", "/api/ft/jobs"],
  cancelJob: ["DELETE", "/api/ft/jobs/"],
  watch: ["GET", "/api/ft/watch"],
  divide: ["POST", "/api/ft/memory"],
  logs: ["GET", "/api/ft/logs"],
  log: ["GET", "/api/ft/logs/"],
};

const KEY = "ft.key";
let keyAsker = null;

export class ApiError extends Error {
  constructor(message, { hint = "", code = "", status = 0 } = {}) {
    super(message);
    Object.assign(this, { hint, code, status });
  }
}

// Who asks the user for the API key of this server; resolves to "" when none is given.
export function onKeyNeeded(asker) {
  keyAsker = asker;
}

// One object for one question. options: {body, query, tail, signal}
export async function ask(route, options = {}) {
  const reply = await send(route, options);
  const text = await reply.text();
  return text.trim() ? JSON.parse(text) : {};
}

// The objects of a stream, as they come.
export async function* objects(route, options = {}) {
  let rest = "";
  for await (const text of texts(route, options)) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.trim()) yield told(JSON.parse(line));
  }
  if (rest.trim()) yield told(JSON.parse(rest));
}

// The text of a stream, as it comes.
export async function* texts(route, options = {}) {
  const reply = await send(route, options);
  const reader = reply.body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } catch (error) {
    throw options.signal?.aborted ? error : gone();
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function send([method, path], { body, query, tail = "", signal }, tried = "") {
  const asked = query ? `?${new URLSearchParams(query)}` : "";
  const key = sessionStorage.getItem(KEY);
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  let reply;
  try {
    reply = await fetch(path + encodeURIComponent(tail) + asked, {
      method, headers, signal, cache: "no-store", body: body ? JSON.stringify(body) : undefined,
    });
  } catch (error) {
    throw signal?.aborted ? error : gone();
  }
  if (reply.ok) return reply;
  if (reply.status === 401 && keyAsker) {
    const given = await keyAsker(tried !== "");
    if (given) {
      sessionStorage.setItem(KEY, given);
      return send([method, path], { body, query, tail, signal }, given);
    }
  }
  throw refused(reply.status, await reply.text());
}

function refused(status, text) {
  let value = null;
  try {
    value = JSON.parse(text);
  } catch {
    // not JSON: its text is told below
  }
  if (value && typeof value.error === "string") return new ApiError(value.error, { ...value, status });
  return new ApiError(text.trim() || `The manager answered ${status}.`, { status });
}

function told(value) {
  if (typeof value.error === "string") throw new ApiError(value.error, value);
  return value;
}

function gone() {
  return new ApiError("The manager does not answer.", {
    hint: "Is it running? Start it with: ft serve", code: "unreachable",
  });
}
