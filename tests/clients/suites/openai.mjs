// The official openai package for Node.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import * as stage from "./stage.mjs";

const { said } = stage;
const of = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const client = of(stage.URL);
const tools = [{ type: "function", function: { name: "get_weather", parameters: stage.FLAT } }];
const Person = z.object({ name: z.string(), age: z.number().int() });

test("chat and stream", async () => {
  const whole = await client.chat.completions.create({ model: stage.TALKER, messages: said("Hi") });
  assert.equal(whole.choices[0].message.content, stage.SAYS);
  const stream = client.chat.completions.stream({
    model: stage.TALKER, messages: said("Hi"), stream_options: { include_usage: true },
  });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, stage.SAYS);
  assert.equal(final.usage.completion_tokens, 11);
});

test("a tool round trip", async () => {
  const answers = { get_weather: ({ city }) => (city === "Paris" ? "18 C" : "?") };
  const runnable = {
    type: "function",
    function: {
      name: "get_weather", description: "The weather now", parameters: stage.FLAT,
      parse: JSON.parse, function: answers.get_weather,
    },
  };
  const run = client.chat.completions.runTools({
    model: stage.MODEL, messages: said("the WEATHER"), tools: [runnable],
  });
  assert.equal(await run.finalContent(), stage.AFTER_TOOL);
});

test("streamed parallel calls", async () => {
  const stream = client.chat.completions.stream({ model: stage.MODEL, messages: said("BOTH"), tools });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  const cities = message.tool_calls.map((call) => JSON.parse(call.function.arguments).city);
  assert.deepEqual(cities, ["Paris", "Rome"]);
});

test("parsed output", async () => {
  const answer = await client.chat.completions.parse({
    model: stage.MODEL, messages: said("PERSON"), response_format: zodResponseFormat(Person, "person"),
  });
  assert.deepEqual(answer.choices[0].message.parsed, stage.ADA);
});

test("responses", async () => {
  const flat = [{ type: "function", name: "get_weather", parameters: stage.FLAT, strict: true }];
  const first = await client.responses.create({ model: stage.MODEL, input: "the WEATHER", tools: flat });
  const call = first.output.find((item) => item.type === "function_call");
  const stream = client.responses.stream({
    model: stage.MODEL, previous_response_id: first.id, tools: flat,
    input: [{ type: "function_call_output", call_id: call.call_id, output: "18 C" }],
  });
  assert.equal((await stream.finalResponse()).output_text, stage.AFTER_TOOL);
  const parsed = await client.responses.parse({
    model: stage.MODEL, input: "PERSON", text: { format: zodTextFormat(Person, "person") },
  });
  assert.deepEqual(parsed.output_parsed, stage.ADA);
});

test("embeddings, models, errors", async () => {
  const found = await client.embeddings.create({ model: stage.VECTORS, input: ["a", "b"] });
  assert.deepEqual(found.data.map((entry) => entry.embedding.length), [8, 8]);
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("caller:latest"));
  const asked = client.chat.completions.create({ model: "nope", messages: said("Hi") });
  await assert.rejects(asked, (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
});

test("the real model talks and must call", stage.needsReal, async () => {
  const real = of(stage.REAL_URL);
  const answer = await real.chat.completions.create({
    model: stage.REAL_MODEL, messages: said("What is the capital of France?"), max_tokens: 24,
  });
  assert.match(answer.choices[0].message.content, /Paris/);
  const called = await real.chat.completions.create({
    model: stage.REAL_TOOLS, messages: said("How is the weather in Paris?"), tools, max_tokens: 60,
    tool_choice: "required", parallel_tool_calls: false,
  });
  assert.equal(called.choices[0].message.tool_calls[0].function.name, "get_weather");
});
