// A request of a webhook, as the official client for Node reads it. HOOK has its headers and its body.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { headers, body, secret } = JSON.parse(process.env.HOOK);
const client = new OpenAI({ webhookSecret: secret }); // OPENAI_API_KEY
const event = await client.webhooks.unwrap(body, headers);
assert.equal(event.object, "event");
assert.equal(event.id, headers["webhook-id"]);
await assert.rejects(client.webhooks.unwrap(body.replace("completed", "failed"), headers), OpenAI.InvalidWebhookSignatureError);
console.log(`ok ${event.type} ${event.data.id}`);
