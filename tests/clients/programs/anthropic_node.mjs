// Anthropic's SDK for Node, with a model that speaks Chat Completions.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const baseURL = process.env.OPENAI_BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: process.env.OPENAI_API_KEY });
const asked = { model: "puppet", max_tokens: 4096 };
const weather = {
  name: "get_weather",
  description: "The weather somewhere.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const prompt = 'Weather? [[think hm]][[call get_weather {"city": "Bonn"}]][[then]][[say Told: {result}]]';

async function loop(options, create) {
  const messages = [{ role: "user", content: prompt }];
  for (let turn = 0; turn < 5; turn += 1) {
    const message = await create({ ...asked, ...options, messages, tools: [weather] });
    messages.push({ role: "assistant", content: message.content });
    if (message.stop_reason !== "tool_use") return messages;
    const calls = message.content.filter((block) => block.type === "tool_use");
    assert.deepEqual(calls.map((call) => call.input), [{ city: "Bonn" }]);
    messages.push({
      role: "user",
      content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "rain" })),
    });
  }
  throw new Error("the loop does not end");
}

const scenarios = {
  async text() {
    const message = await client.messages.create({ ...asked, system: "Be brief.", messages: [{ role: "user", content: "Hello." }] });
    assert.deepEqual([message.content[0].text, message.stop_reason], ["Hello from the model.", "end_turn"]);
    assert.deepEqual([message.usage.input_tokens, message.usage.output_tokens], [11, 7]);
  },
  async stream() {
    let heard = "";
    const stream = client.messages.stream({ ...asked, messages: [{ role: "user", content: "Hello. [[say one two three]]" }] });
    stream.on("text", (piece) => (heard += piece));
    const message = await stream.finalMessage();
    assert.equal(heard, "one two three");
    assert.deepEqual([message.usage.input_tokens, message.usage.output_tokens], [11, 7]);
  },
  async tools() {
    const messages = await loop({}, (body) => client.messages.create(body));
    assert.deepEqual(messages.at(-1).content.map((block) => block.text), ["Told: rain"]);
  },
  async thinking() {
    const thinking = { type: "enabled", budget_tokens: 2048 };
    const messages = await loop({ thinking }, (body) => client.messages.stream(body).finalMessage());
    const [thought] = messages[1].content;
    assert.deepEqual([thought.type, thought.thinking], ["thinking", "hm"]);
    assert(thought.signature);
    assert.equal(messages.at(-1).content.at(-1).text, "Told: rain");
  },
  async runner() {
    const tool = betaTool({ ...weather, inputSchema: weather.input_schema, run: async ({ city }) => `rain in ${city}` });
    const message = await client.beta.messages.toolRunner({ ...asked, tools: [tool], messages: [{ role: "user", content: prompt }] });
    assert.equal(message.content.at(-1).text, "Told: rain in Bonn");
  },
  async count() {
    const counted = await client.messages.countTokens({ model: "puppet", messages: [{ role: "user", content: "Hello." }], tools: [weather] });
    assert(counted.input_tokens > 0);
  },
  async errors() {
    await assert.rejects(client.messages.create({ ...asked, model: "nobody", messages: [{ role: "user", content: "Hello." }] }), (error) => {
      assert(error instanceof Anthropic.NotFoundError);
      assert.equal(error.error.error.type, "not_found_error");
      return true;
    });
  },
};

for (const [name, act] of Object.entries(scenarios)) {
  if (process.argv[2] && process.argv[2] !== name) continue;
  await act();
  console.log("ok", name);
}
