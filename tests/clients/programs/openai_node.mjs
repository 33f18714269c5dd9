// The official client for Node, as its users use it.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI(); // OPENAI_BASE_URL, OPENAI_API_KEY
const model = "puppet";
const weather = {
  type: "function",
  name: "get_weather",
  description: "The weather somewhere.",
  strict: true,
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
};

const scenarios = {
  async text() {
    const response = await client.responses.create({ model, instructions: "Be brief.", input: "Hello." });
    assert.equal(response.output_text, "Hello from the model.");
    assert.equal(response.usage.total_tokens, 18);
  },
  async stream() {
    const stream = client.responses.stream({ model, input: "Hello. [[think hm hm]][[say one two three]]" });
    let heard = "";
    stream.on("response.output_text.delta", (event) => (heard += event.delta));
    const final = await stream.finalResponse();
    assert.equal(heard, "one two three");
    assert.deepEqual(final.output.map((item) => item.type), ["reasoning", "message"]);
  },
  async tools() {
    const input = [{ role: "user", content: 'Weather? [[call get_weather {"city": "Bonn"}]][[then]][[say Bonn: {result}]]' }];
    const first = await client.responses.create({ model, input, tools: [weather], store: false });
    const [called] = first.output;
    assert.deepEqual(JSON.parse(called.arguments), { city: "Bonn" });
    input.push(...first.output, { type: "function_call_output", call_id: called.call_id, output: "rain" });
    const second = await client.responses.create({ model, input, tools: [weather], store: false });
    assert.equal(second.output_text, "Bonn: rain");
  },
  async chain() {
    const first = await client.responses.create({ model, input: "First." });
    const second = await client.responses.create({ model, previous_response_id: first.id, input: "Second. [[say {heard}]]" });
    assert.equal(second.output_text, "2");
  },
  async structured() {
    const Person = z.object({ name: z.string(), age: z.number() });
    const input = 'Who? [[say {"name": "Ada", "age": 36}]]';
    const response = await client.responses.parse({ model, input, text: { format: zodTextFormat(Person, "person") } });
    assert.deepEqual(response.output_parsed, { name: "Ada", age: 36 });
  },
  async background() {
    let response = await client.responses.create({ model, input: "Hello.", background: true });
    assert.equal(response.status, "queued");
    while (["queued", "in_progress"].includes(response.status)) response = await client.responses.retrieve(response.id);
    assert.equal(response.output_text, "Hello from the model.");
  },
  async resume() {
    const numbers = [];
    const stream = await client.responses.create({ model, input: "Go. [[say one two three]]", background: true, stream: true });
    let id;
    for await (const event of stream) {
      id ??= event.response.id;
      numbers.push(event.sequence_number);
      if (event.type === "response.output_text.delta") break;
    }
    for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: numbers.at(-1) })) numbers.push(event.sequence_number);
    assert.deepEqual(numbers, numbers.map((_, index) => index));
    const again = await client.responses.stream({ response_id: id }).finalResponse();
    assert.equal(again.output_text, "one two three");
  },
  async bookkeeping() {
    const response = await client.responses.create({ model, input: [{ role: "user", content: "One." }, { role: "user", content: "Two." }] });
    const texts = [];
    for await (const item of client.responses.inputItems.list(response.id, { order: "asc", limit: 1 })) texts.push(item.content[0].text);
    assert.deepEqual(texts, ["One.", "Two."]);
    await client.responses.delete(response.id);
    await assert.rejects(client.responses.retrieve(response.id), OpenAI.NotFoundError);
    const names = [];
    for await (const found of client.models.list()) names.push(found.id);
    assert(names.includes(model));
  },
  async socket() {
    const socket = new ResponsesWS(client);
    const events = socket.stream()[Symbol.asyncIterator]();
    const ask = async (body) => {
      socket.send({ type: "response.create", model, store: false, ...body });
      for (;;) {
        const { value } = await events.next();
        if (value.type === "error") throw value.error;
        if (value.message?.type === "response.completed") return value.message.response;
      }
    };
    const warm = await ask({ generate: false, instructions: "Be brief.", input: [] });
    const first = await ask({ previous_response_id: warm.id, input: "One." });
    const second = await ask({ previous_response_id: first.id, input: "Two. [[say {heard}]]" });
    assert.equal(second.output_text ?? second.output[0].content[0].text, "2");
    socket.close();
  },
  async conversation() {
    const conversation = await client.conversations.create({ items: [{ role: "user", content: "Zero." }] });
    await client.responses.create({ model, conversation: conversation.id, input: "One." });
    const second = await client.responses.create({ model, conversation: conversation.id, input: "Two. [[say {heard}]]" });
    assert.equal(second.output_text, "3");
    const kinds = [];
    for await (const item of client.conversations.items.list(conversation.id, { order: "asc" })) kinds.push(item.role);
    assert.deepEqual(kinds, ["user", "user", "assistant", "user", "assistant"]);
    await client.conversations.delete(conversation.id);
  },
  async chat() {
    const stream = client.chat.completions.stream({ model, messages: [{ role: "user", content: "[[say one two three]]" }] });
    assert.equal(await stream.finalContent(), "one two three");
    const asked = await client.chat.completions.create({ model, messages: [{ role: "user", content: "Hello." }] });
    assert.equal(asked.choices[0].message.content, "Hello from the model.");
  },
  async errors() {
    await assert.rejects(client.responses.create({ model, input: "x", temperature: 9 }), OpenAI.BadRequestError);
    await assert.rejects(new OpenAI({ apiKey: "bb-wrong" }).responses.create({ model, input: "x" }), OpenAI.AuthenticationError);
  },
};

for (const [name, run] of Object.entries(scenarios)) {
  if (process.argv[2] && process.argv[2] !== name) continue;
  await run();
  console.log("ok", name);
}
