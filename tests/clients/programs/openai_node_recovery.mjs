// The stream helper of the official client for Node, while the response's worker is killed.
// Prints `item <type> <status>` for each item that is done, then the final output as JSON.
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ maxRetries: 0 }); // OPENAI_BASE_URL, OPENAI_API_KEY
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const stream = client.responses.stream({
  model: process.env.MODEL,
  input: "Go.",
  background: true,
  tools: [{ type: "function", name: "look", strict: true, parameters }],
  text: { format: zodTextFormat(z.object({ name: z.string() }), "person") },
});
stream.on("response.output_text.delta", (event) => console.log("text", event.snapshot));
stream.on("response.function_call_arguments.delta", (event) => console.log("arguments", event.snapshot));
stream.on("response.output_item.done", (event) => console.log("item", event.item.type, event.item.status));
const final = await stream.finalResponse();
const output = final.output.map((item) => [item.type, item.parsed_arguments ?? item.content?.[0].parsed]);
console.log("final", JSON.stringify(output));
