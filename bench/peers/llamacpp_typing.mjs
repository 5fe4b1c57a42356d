// A peer through llama.cpp that answers while somebody types, greedy and left to right:
//
//     node bench/peers/llamacpp_typing.mjs MODEL.gguf FOLDER THREADS
//
// FOLDER is where `npm i node-llama-cpp` was run. A line of stdin is {before, most, warm}: at most `most` tokens are
// written behind `before`, to the end of the line. Where it is `warm` only what differs from the text before is read.
// A line of stdout is {text, tokens, read, ms}: tokens written and read, and how long that took in this process.
import { createRequire } from "node:module";
import path from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [gguf, folder, threads] = process.argv.slice(2);
const found = createRequire(path.join(path.resolve(folder), "x.js")).resolve("node-llama-cpp");
const { getLlama } = await import(pathToFileURL(found));

const CONTEXT = 768; // tokens, as our model sees
const START = "<|im_start|>"; // before SmolLM2's prefix: see smollm2.py; Qwen has it too

const llama = await getLlama({ gpu: false, build: "never", maxThreads: +threads, logLevel: "error" });
const model = await llama.loadModel({ modelPath: gguf });
const context = await model.createContext({ contextSize: 1280, threads: +threads });
const sequence = context.getSequence();

async function complete({ before, most, warm }) {
  const asked = [...model.tokenize(START, true), ...model.tokenize(before).slice(-CONTEXT)];
  if (warm) await sequence.adaptStateToTokens(asked.slice(0, -1), false); // the last one has to be read to go on
  else await sequence.clearHistory();
  const unread = asked.slice(sequence.nextTokenIndex), made = [];
  let text = "";
  for await (const token of sequence.evaluate(unread, { temperature: 0 })) {
    made.push(token);
    text = model.detokenize(made);
    if (made.length >= most || /[\r\n]/.test(text)) break;
  }
  return { text: text.split(/[\r\n]/)[0], tokens: made.length, read: unread.length };
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line), began = performance.now();
  const done = await complete(asked);
  process.stdout.write(JSON.stringify({ ...done, ms: performance.now() - began }) + "\n");
}
process.exit(0); // the library's threads would keep the process for a while
