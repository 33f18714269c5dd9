// The Vercel AI SDK with its OpenAI provider, which speaks the Responses API by default.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const model = provider("puppet");
const tools = {
  get_weather: tool({
    description: "The weather somewhere.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => ({ city, sky: "rain" }),
  }),
};
const prompt = 'Weather? [[think hm]][[call get_weather {"city": "Bonn"}]][[then]][[say Told: {result}]]';

const scenarios = {
  async text() {
    const { text, usage, finishReason } = await generateText({ model, system: "Be brief.", prompt: "Hello." });
    assert.equal(text, "Hello from the model.");
    assert.deepEqual([usage.inputTokens, usage.outputTokens, finishReason], [11, 7, "stop"]);
  },
  async stream() {
    let heard = "";
    const result = streamText({ model, prompt: "Hello. [[think hm hm]][[say one two three]]", onError: ({ error }) => { throw error; } });
    for await (const piece of result.textStream) heard += piece;
    assert.equal(heard, "one two three");
    assert.equal(await result.finishReason, "stop");
  },
  async tools() {
    const { text, steps } = await generateText({ model, tools, prompt, stopWhen: stepCountIs(5) });
    assert.equal(text, 'Told: {"city":"Bonn","sky":"rain"}');
    assert.equal(steps.length, 2);
  },
  async tools_unstored() {
    const providerOptions = { openai: { store: false } };
    const { text } = await generateText({ model, tools, prompt, stopWhen: stepCountIs(5), providerOptions });
    assert.equal(text, 'Told: {"city":"Bonn","sky":"rain"}');
  },
  async tools_streamed() {
    const result = streamText({ model, tools, prompt, stopWhen: stepCountIs(5), onError: ({ error }) => { throw error; } });
    const kinds = [];
    for await (const part of result.fullStream) kinds.push(part.type);
    for (const kind of ["tool-call", "tool-result", "text-delta", "finish"]) assert(kinds.includes(kind), kind);
    assert.equal(await result.text, 'Told: {"city":"Bonn","sky":"rain"}');
  },
  async encrypted() {
    const providerOptions = { openai: { store: false, include: ["reasoning.encrypted_content"], reasoningEffort: "low" } };
    const { text } = await generateText({ model: provider("gpt-5.5"), tools, prompt, stopWhen: stepCountIs(5), providerOptions });
    assert.equal(text, 'Told: {"city":"Bonn","sky":"rain"}');
  },
  async hosted_mcp() {
    const town = provider.tools.mcp({ serverLabel: "town", serverUrl: process.env.MCP_URL, requireApproval: "never" });
    const { text } = await generateText({ model, tools: { mcp: town }, prompt: 'Go. [[call weather {"city": "Bonn"}]][[then]][[say {result}]]' });
    assert.match(text, /degrees/);
  },
  async chat() {
    const { text } = await generateText({ model: provider.chat("puppet"), tools, prompt, stopWhen: stepCountIs(5) });
    assert.equal(text, 'Told: {"city":"Bonn","sky":"rain"}');
  },
  async structured() {
    const { output } = await generateText({
      model,
      output: Output.object({ schema: z.object({ name: z.string(), age: z.number() }) }),
      prompt: 'Who? [[say {"name": "Ada", "age": 36}]]',
    });
    assert.deepEqual(output, { name: "Ada", age: 36 });
  },
  async chain() {
    const first = await generateText({ model, prompt: "One." });
    const providerOptions = { openai: { previousResponseId: first.providerMetadata.openai.responseId } };
    assert.equal((await generateText({ model, prompt: "Two. [[say {heard}]]", providerOptions })).text, "2");
  },
};

for (const [name, act] of Object.entries(scenarios)) {
  if (process.argv[2] && process.argv[2] !== name) continue;
  await act();
  console.log("ok", name);
}
