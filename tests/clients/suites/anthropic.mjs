// The official @anthropic-ai/sdk package.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import * as stage from "./stage.mjs";

const { said } = stage;
const of = (url) => new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const client = of(stage.URL);
const tools = [{ name: "get_weather", description: "The weather now", input_schema: stage.FLAT }];

test("chat and stream", async () => {
  const asked = { model: stage.TALKER, max_tokens: 50, messages: said("Hi") };
  assert.equal((await client.messages.create(asked)).content[0].text, stage.SAYS);
  const stream = client.messages.stream({ ...asked, system: "Be brief." });
  assert.equal(await stream.finalText(), stage.SAYS);
});

test("a tool round trip", async () => {
  const messages = said("the WEATHER");
  const asked = { model: stage.MODEL, max_tokens: 100, tools };
  const answer = await client.messages.stream({ ...asked, messages }).finalMessage();
  const call = answer.content.find((block) => block.type === "tool_use");
  assert.deepEqual(call.input, { city: "Paris" });
  messages.push(
    { role: "assistant", content: answer.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "18 C" }] },
  );
  const last = await client.messages.create({ ...asked, messages });
  assert.equal(last.content[0].text, stage.AFTER_TOOL);
});

test("thinking", async () => {
  const answer = await client.messages.create({
    model: stage.MODEL, max_tokens: 2000, messages: said("THINK"),
    thinking: { type: "enabled", budget_tokens: 1024 },
  });
  assert.equal(answer.content[0].thinking, stage.THOUGHT);
  assert.equal(answer.content[1].text, stage.AFTER_THOUGHT);
});

test("structured output", async () => {
  const answer = await client.messages.create({
    model: stage.MODEL, max_tokens: 100, messages: said("PERSON"),
    output_config: { format: { type: "json_schema", schema: stage.PERSON_SCHEMA } },
  });
  assert.deepEqual(JSON.parse(answer.content[0].text), stage.ADA);
});

test("counting, models, errors", async () => {
  const counted = await client.messages.countTokens({ model: stage.MODEL, messages: said("Hi") });
  assert.ok(counted.input_tokens > 1);
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("caller:latest"));
  const asked = client.messages.create({ model: "nope", max_tokens: 5, messages: said("Hi") });
  await assert.rejects(asked, Anthropic.NotFoundError);
});

test("the real model talks and must call", stage.needsReal, async () => {
  const real = of(stage.REAL_URL);
  const answer = await real.messages.create({
    model: stage.REAL_MODEL, max_tokens: 24, messages: said("What is the capital of France?"),
  });
  assert.match(answer.content[0].text, /Paris/);
  const called = await real.messages.create({
    model: stage.REAL_TOOLS, max_tokens: 60, messages: said("How is the weather in Paris?"), tools,
    tool_choice: { type: "tool", name: "get_weather", disable_parallel_tool_use: true },
  });
  assert.deepEqual(Object.keys(called.content[0].input), ["city"]);
});
