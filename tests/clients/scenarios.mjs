// What the npm client does in each test; prints what it found as JSON.
//
//   node scenarios.mjs FOLDER SCENARIO URL GIVEN
//
// FOLDER has the installed packages; GIVEN is JSON.

import { createRequire } from "node:module";

const [folder, scenario, baseURL, given] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const OpenAI = require("openai").default;
const input = JSON.parse(given);

const attempts = [];

/** Sends as the client would, and notes what came of each attempt. */
async function noted(url, options) {
  const began = performance.now();
  const response = await fetch(url, options);
  attempts.push({
    status: response.status,
    began,
    retryAfter: response.headers.get("retry-after"),
    count: new Headers(options.headers).get("x-stainless-retry-count"),
  });
  return response;
}

const client = new OpenAI({
  baseURL,
  apiKey: "any",
  maxRetries: input.maxRetries ?? 0,
  timeout: input.timeoutMs ?? 20000,
  fetch: noted,
});
const messages = [{ role: "user", content: input.text ?? "Hello" }];
const body = { model: input.model, messages, temperature: 0, ...input.fields };

/** What the client raises, by its own class. */
function raised(error) {
  return {
    kind: error.constructor.name,
    status: error.status ?? null,
    code: error.code ?? null,
    type: error.type ?? null,
    param: error.param ?? null,
    message: error.message,
    requestID: error.requestID ?? null,
  };
}

async function caught(promise) {
  try {
    await promise;
  } catch (error) {
    return raised(error);
  }
  return null;
}

const scenarios = {
  async chat() {
    const { data, response, request_id } = await client.chat.completions
      .create(body)
      .withResponse();
    return { answer: data, requestID: request_id, decode: response.headers.get("x-pdbus-decode") };
  },

  async stream() {
    const chunks = [];
    const stream = await client.chat.completions.create({
      ...body,
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) chunks.push(chunk);
    return { chunks };
  },

  // The helper puts the chunks together and checks them against what it expects of the API.
  async gathered() {
    const stream = client.chat.completions.stream({ ...body });
    const deltas = [];
    stream.on("content", (delta) => deltas.push(delta));
    const completion = await stream.finalChatCompletion();
    return { completion, deltas };
  },

  async tools() {
    const called = [];
    const weather = ({ city }) => {
      called.push(city);
      return `sunny in ${city}`;
    };
    const parameters = {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
    };
    const runner = client.chat.completions.runTools({
      ...body,
      stream: input.stream,
      tools: [
        {
          type: "function",
          function: { name: "get_weather", function: weather, parse: JSON.parse, parameters },
        },
      ],
    }, { maxChatCompletions: 1 });
    await runner.done();
    return { called, messages: runner.messages };
  },

  async completion() {
    const answer = await client.completions.create({
      model: input.model,
      prompt: input.text,
      temperature: 0,
      ...input.fields,
    });
    return { answer };
  },

  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return { ids, one: await client.models.retrieve(input.model) };
  },

  async response() {
    const request = { model: input.model, input: input.text, ...input.fields };
    const whole = await client.responses.create(request);
    const events = [];
    for await (const event of await client.responses.create({ ...request, stream: true })) {
      events.push(event.type);
    }
    const stream = client.responses.stream(request);
    const final = await stream.finalResponse();
    return { text: whole.output_text, whole, events, final: final.output_text };
  },

  async errors() {
    const found = {};
    for (const [name, fields] of Object.entries(input.cases)) {
      found[name] = await caught(client.chat.completions.create({ ...body, ...fields }));
    }
    return found;
  },

  async broken() {
    let text = "";
    const error = await caught(
      (async () => {
        const stream = await client.chat.completions.create({ ...body, stream: true });
        for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
      })(),
    );
    return { text, error };
  },

  async retried() {
    const answer = await client.chat.completions.create(body);
    return { answer, attempts };
  },

  async timeout() {
    return { error: await caught(client.chat.completions.create(body)), attempts };
  },

  async aborted() {
    const controller = new AbortController();
    let chunks = 0;
    const stream = await client.chat.completions.create(
      { ...body, stream: true },
      { signal: controller.signal },
    );
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta?.content && ++chunks === 3) controller.abort();
    }
    const early = new AbortController();
    const waiting = caught(
      client.chat.completions.create({ ...body, ...input.second }, { signal: early.signal }),
    );
    setTimeout(() => early.abort(), 300);
    return { chunks, error: await waiting };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
