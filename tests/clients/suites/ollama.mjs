// The official ollama package for Node.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";
import * as stage from "./stage.mjs";

const { said } = stage;
const client = new Ollama({ host: stage.URL });
const tools = [
  { type: "function", function: { name: "get_weather", description: "The weather now", parameters: stage.FLAT } },
];

test("chat and stream", async () => {
  const whole = await client.chat({ model: stage.TALKER, messages: said("Hi") });
  assert.equal(whole.message.content, stage.SAYS);
  let text = "";
  for await (const piece of await client.chat({ model: stage.TALKER, messages: said("Hi"), stream: true }))
    text += piece.message.content;
  assert.equal(text, stage.SAYS);
  const generated = await client.generate({ model: stage.TALKER, prompt: "Hi" });
  assert.equal(generated.response, stage.SAYS);
});

test("a tool round trip", async () => {
  const messages = said("the WEATHER");
  const { message } = await client.chat({ model: stage.MODEL, messages, tools });
  assert.deepEqual(message.tool_calls[0].function.arguments, { city: "Paris" });
  messages.push(message, { role: "tool", tool_name: "get_weather", content: "18 C" });
  const last = await client.chat({ model: stage.MODEL, messages, tools });
  assert.equal(last.message.content, stage.AFTER_TOOL);
});

test("structured output and thinking", async () => {
  const kept = await client.chat({ model: stage.MODEL, messages: said("PERSON"), format: stage.PERSON_SCHEMA });
  assert.deepEqual(JSON.parse(kept.message.content), stage.ADA);
  const thought = await client.chat({ model: stage.MODEL, messages: said("THINK"), think: true });
  assert.equal(thought.message.thinking, stage.THOUGHT);
  assert.equal(thought.message.content, stage.AFTER_THOUGHT);
});

test("embeddings and listings", async () => {
  const found = await client.embed({ model: stage.VECTORS, input: ["a", "b"] });
  assert.deepEqual(found.embeddings.map((vector) => vector.length), [8, 8]);
  assert.ok((await client.list()).models.some((model) => model.model === "caller:latest"));
  assert.ok((await client.show({ model: stage.MODEL })).capabilities.includes("tools"));
  assert.ok(Array.isArray((await client.ps()).models));
  assert.match((await client.version()).version, /^\d/);
});

test("errors", async () => {
  const asked = client.chat({ model: "nope", messages: said("Hi") });
  await assert.rejects(asked, (error) => error.status_code === 404 && /nope/.test(error.message));
});

test("the real model talks and keeps to a schema", stage.needsReal, async () => {
  const real = new Ollama({ host: stage.REAL_URL });
  const asked = { model: stage.REAL_MODEL, options: { temperature: 0, num_predict: 60 } };
  const answer = await real.chat({ ...asked, messages: said("What is the capital of France?") });
  assert.match(answer.message.content, /Paris/);
  const messages = said("Ada is 36 years old. Name and age as JSON.");
  const kept = await real.chat({ ...asked, messages, format: stage.PERSON_SCHEMA });
  assert.equal(typeof JSON.parse(kept.message.content).age, "number");
});

test("a stream can be aborted", stage.needsReal, async () => {
  const real = new Ollama({ host: stage.REAL_URL });
  const stream = await real.generate({ model: stage.REAL_MODEL, prompt: "Tell me a long story.", stream: true });
  await assert.rejects(async () => {
    for await (const _ of stream) stream.abort();
  }, { name: "AbortError" });
  assert.equal((await real.ps()).models.length, 1);
});
