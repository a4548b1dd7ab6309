// The AI SDK (`ai`) with ollama-ai-provider-v2.
import assert from "node:assert/strict";
import { test } from "node:test";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";
import * as stage from "./stage.mjs";

const provider = createOllama({ baseURL: `${stage.URL}/api` });
const once = { maxRetries: 0 };
const getWeather = tool({
  description: "The weather now",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (city === "Paris" ? "18 C" : "?"),
});

test("chat and stream", async () => {
  const whole = await generateText({ ...once, model: provider(stage.TALKER), prompt: "Hi" });
  assert.equal(whole.text, stage.SAYS);
  assert.equal(whole.usage.outputTokens, 11);
  const stream = streamText({
    ...once, model: provider(stage.TALKER), prompt: "Hi",
    providerOptions: { ollama: { options: { num_ctx: 1024 } } },
  });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  assert.equal(text, stage.SAYS);
});

test("a tool round trip", async () => {
  const asked = { ...once, model: provider(stage.MODEL), tools: { get_weather: getWeather }, stopWhen: stepCountIs(3) };
  const whole = await generateText({ ...asked, prompt: "the WEATHER" });
  assert.equal(whole.text, stage.AFTER_TOOL);
  assert.equal(whole.steps.length, 2);
  const stream = streamText({ ...asked, prompt: "the WEATHER" });
  assert.equal(await stream.text, stage.AFTER_TOOL);
});

test("structured output", async () => {
  const schema = z.object({ name: z.string(), age: z.number().int() });
  const answer = await generateText({
    ...once, model: provider(stage.MODEL), prompt: "PERSON", output: Output.object({ schema }),
  });
  assert.deepEqual(answer.output, stage.ADA);
});

test("thinking", async () => {
  const answer = await generateText({
    ...once, model: provider(stage.MODEL), prompt: "THINK", providerOptions: { ollama: { think: true } },
  });
  assert.equal(answer.reasoningText, stage.THOUGHT);
  assert.equal(answer.text, stage.AFTER_THOUGHT);
});

test("embeddings and errors", async () => {
  const model = provider.textEmbeddingModel ? provider.textEmbeddingModel(stage.VECTORS) : provider.embeddingModel(stage.VECTORS);
  const { embeddings } = await embedMany({ ...once, model, values: ["a", "b"] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [8, 8]);
  // the provider reads OpenAI's shape of errors only, so the text is in the body alone
  await assert.rejects(
    generateText({ ...once, model: provider("nope"), prompt: "Hi" }),
    (error) => error.statusCode === 404 && /nope/.test(error.responseBody),
  );
});

test("the real model talks", stage.needsReal, async () => {
  const real = createOllama({ baseURL: `${stage.REAL_URL}/api` });
  const answer = await generateText({
    ...once, model: real(stage.REAL_MODEL), prompt: "What is the capital of France?", maxOutputTokens: 24,
  });
  assert.match(answer.text, /Paris/);
});
