// LangChain for JavaScript: ChatOpenAI over the Responses API.
import assert from "node:assert/strict";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const llm = new ChatOpenAI({ model: "puppet", useResponsesApi: true }); // OPENAI_BASE_URL, OPENAI_API_KEY
const weather = tool(async ({ city }) => `rain in ${city}`, {
  name: "get_weather",
  description: "The weather somewhere.",
  schema: z.object({ city: z.string() }),
});

const scenarios = {
  async text() {
    const said = await llm.invoke([["system", "Be brief."], ["human", "Hello."]]);
    assert.equal(said.text, "Hello from the model.");
    assert.equal(said.usage_metadata.total_tokens, 18);
  },
  async stream() {
    let heard = "";
    for await (const chunk of await llm.stream("Hello. [[think hm hm]][[say one two three]]")) heard += chunk.text;
    assert.equal(heard, "one two three");
  },
  async tools() {
    const messages = [new HumanMessage('Weather? [[think hm]][[call get_weather {"city": "Bonn"}]][[then]][[say It is {result}.]]')];
    const bound = llm.bindTools([weather]);
    const asked = await bound.invoke(messages);
    messages.push(asked, await weather.invoke(asked.tool_calls[0]));
    assert(messages[2] instanceof ToolMessage);
    assert.equal((await bound.invoke(messages)).text, "It is rain in Bonn.");
  },
  async structured() {
    const clerk = llm.withStructuredOutput(z.object({ name: z.string(), age: z.number() }), { name: "person" });
    assert.deepEqual(await clerk.invoke('Who? [[say {"name": "Ada", "age": 36}]]'), { name: "Ada", age: 36 });
  },
  async chat() {
    assert.equal((await new ChatOpenAI({ model: "puppet" }).invoke("[[say one two three]]")).text, "one two three");
  },
  async chain() {
    const first = await llm.invoke("One.");
    const second = await llm.invoke("Two. [[say {heard}]]", { previous_response_id: first.response_metadata.id });
    assert.equal(second.text, "2");
  },
};

for (const [name, act] of Object.entries(scenarios)) {
  if (process.argv[2] && process.argv[2] !== name) continue;
  await act();
  console.log("ok", name);
}
