// The openai client for node against a running server: node openai.mjs BASE_URL MODEL. Prints one JSON line a step.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 60000 });
const messages = [{ role: "user", content: "What is the weather in Berlin?" }];
const say = (o) => console.log(JSON.stringify(o));

const models = [];
for await (const m of client.models.list()) models.push(m.id);
say({ models });

const whole = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0, logprobs: true, top_logprobs: 2 });
say({ text: whole.choices[0].message.content, finish: whole.choices[0].finish_reason, logprobs: whole.choices[0].logprobs.content.length,
      tokens: whole.usage.completion_tokens });

let text = "", usage = null;
const stream = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
	text += chunk.choices[0]?.delta?.content ?? "";
	usage = chunk.usage ?? usage;
}
say({ text, tokens: usage.completion_tokens });

const tools = [{ type: "function", function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }];
const called = await client.chat.completions.create({ model, messages, max_tokens: 30, temperature: 0, tools, tool_choice: "required" });
say({ call: called.choices[0].message.tool_calls[0].function.name, arguments: JSON.parse(called.choices[0].message.tool_calls[0].function.arguments),
      finish: called.choices[0].finish_reason });

try {
	await client.chat.completions.create({ model, messages, temperature: 3 });
} catch (e) {
	say({ error: e.constructor.name, status: e.status, param: e.param });
}
