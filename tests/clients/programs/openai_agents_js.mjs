// The OpenAI Agents SDK for JavaScript: a run with tools, a handoff, a stream, a session, and output of a shape.
import assert from "node:assert/strict";
import { Agent, hostedMcpTool, MemorySession, OpenAIConversationsSession, run, setTracingDisabled, tool, withResponsesWebSocketSession } from "@openai/agents";
import WebSocket from "ws";
import { z } from "zod";

globalThis.WebSocket ??= WebSocket; // Node has one of its own from 22 on

setTracingDisabled(true);
const model = "puppet";
const weather = tool({
  name: "get_weather",
  description: "The weather somewhere.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});
const both = 'Weather? [[call get_weather {"city": "Bonn"}]][[call get_weather {"city": "Ulm"}]][[then]][[say It is {result}.]]';

const scenarios = {
  async tools() {
    const agent = new Agent({ name: "Weatherman", instructions: "Look it up.", model, tools: [weather] });
    assert.equal((await run(agent, both)).finalOutput, "It is rain in Ulm.");
  },
  async stream() {
    const agent = new Agent({ name: "Weatherman", model, tools: [weather] });
    const result = await run(agent, both, { stream: true });
    let heard = "";
    for await (const piece of result.toTextStream()) heard += piece;
    await result.completed;
    assert.equal(heard, "It is rain in Ulm.");
  },
  async handoff() {
    const poet = new Agent({ name: "Poet", instructions: "Write.", model });
    const desk = Agent.create({ name: "Desk", instructions: "Send on.", model, handoffs: [poet] });
    const result = await run(desk, "A poem. [[call transfer_to_Poet {}]][[then]][[say Roses are red.]]");
    assert.equal(result.finalOutput, "Roses are red.");
    assert.equal(result.lastAgent.name, "Poet");
  },
  async session() {
    const session = new MemorySession();
    const agent = new Agent({ name: "Memory", model, tools: [weather] });
    await run(agent, both, { session });
    const result = await run(agent, "How often did I ask? [[say {heard}]]", { session });
    assert.equal(result.finalOutput, "2");
  },
  async chain() {
    const agent = new Agent({ name: "Chain", model });
    const first = await run(agent, "One.");
    const second = await run(agent, "Two. [[say {heard}]]", { previousResponseId: first.lastResponseId });
    assert.equal(second.finalOutput, "2");
  },
  async structured() {
    const agent = new Agent({ name: "Clerk", model, outputType: z.object({ name: z.string(), age: z.number() }) });
    assert.deepEqual((await run(agent, 'Who? [[say {"name": "Ada", "age": 36}]]')).finalOutput, { name: "Ada", age: 36 });
  },
  async hosted_mcp() {
    const town = hostedMcpTool({ serverLabel: "town", serverUrl: process.env.MCP_URL, requireApproval: "always" });
    const agent = new Agent({ name: "Townsman", model, tools: [town] });
    const first = await run(agent, 'Weather? [[call weather {"city": "Bonn"}]][[then]][[say It is {result}.]]');
    assert.equal(first.interruptions.length, 1);
    first.state.approve(first.interruptions[0]);
    assert.match((await run(agent, first.state)).finalOutput, /degrees/);
  },
  async conversation() {
    const session = new OpenAIConversationsSession();
    const agent = new Agent({ name: "Memory", model, tools: [weather] });
    await run(agent, both, { session });
    assert.equal((await run(agent, "Again. [[say {heard}]]", { session })).finalOutput, "2");
    await session.clearSession();
  },
  async socket() {
    await withResponsesWebSocketSession(async ({ run }) => {
      const agent = new Agent({ name: "Weatherman", model, tools: [weather] });
      const first = await run(agent, both);
      assert.equal(first.finalOutput, "It is rain in Ulm.");
      const second = await run(agent, "Again. [[say {heard}]]", { previousResponseId: first.lastResponseId });
      assert.equal(second.finalOutput, "2");
    });
  },
};

for (const [name, act] of Object.entries(scenarios)) {
  if (process.argv[2] && process.argv[2] !== name) continue;
  await act();
  console.log("ok", name);
}
