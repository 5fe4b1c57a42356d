// A peer through llama.cpp, greedy, on one thread, each case with a cold context:
//
//     node bench/peers/llamacpp.mjs CASES.jsonl COMPLETIONS.jsonl MODEL.gguf prefix|fim|separator|append FOLDER
//
// `prefix` shows the text before the gap alone, `fim` both sides in Qwen2.5-Coder's own format. The other two show both
// sides in orders that typing only appends to: `separator` the suffix as a file before this one, `append` the model's
// FIM tokens with the prefix where the answer begins. FOLDER is where `npm i node-llama-cpp` was run.
// A case is {id, stable, rest, suffix, kind, indent, most}: the text before the gap is stable + rest and what is
// generated has to begin with `rest` (token healing), `most` bounds its tokens, and a block ends where a line is
// indented less than `indent` characters, except in `fim`, where the model says itself that the gap is full. Ends of
// lines are for whoever reads the completions: they are given as they came.
import { closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [casesFile, outFile, gguf, prompt, folder] = process.argv.slice(2);
const found = createRequire(path.join(path.resolve(folder), "x.js")).resolve("node-llama-cpp");
const { getLlama } = await import(pathToFileURL(found));

const GOES_ON = prompt !== "fim"; // the answer is what comes next in a text, and nothing says where it ends
const BEFORE = 512, AFTER = 256; // tokens of context, together what our model sees
const START = "<|im_start|>"; // before SmolLM2's prefix: see smollm2.py

const llama = await getLlama({ gpu: false, build: "never", maxThreads: 1, logLevel: "error" });
const model = await llama.loadModel({ modelPath: gguf });
const context = await model.createContext({ contextSize: 1280, threads: 1 });
const sequence = context.getSequence();
const special = (text) => model.tokenize(text, true);

function asked({ stable, suffix }) {
  const before = model.tokenize(stable);
  if (prompt === "prefix") return [...special(START), ...before.slice(-BEFORE - AFTER)];
  const near = before.slice(-BEFORE), after = model.tokenize(suffix).slice(0, AFTER);
  if (prompt === "separator") return [...after, ...special("<|file_sep|>"), ...near];
  const [start, then, middle] = ["prefix", "suffix", "middle"].flatMap((part) => special(`<|fim_${part}|>`));
  return prompt === "append" ? [start, then, ...after, middle, ...near] : [start, ...near, then, ...after, middle];
}

// The most likely token that may stand there, and its probability. A constraint costs a look at the whole vocabulary.
async function next(tokens, fits) {
  const wanted = { token: true, confidence: true, options: { temperature: 0 }, probabilities: fits !== null };
  const answers = await sequence.controlledEvaluate([...tokens.slice(0, -1), [tokens.at(-1), { generateNext: wanted }]]);
  const answer = answers.at(-1).next;
  if (fits === null) return [answer.token, answer.confidence];
  for (const [token, probability] of answer.probabilities) if (fits(token)) return [token, probability];
  return [null, 0];
}

function constraint(text, { rest, kind }) {
  const empty = GOES_ON && kind !== "block" && !text.slice(rest.length).trim();
  if (text.length >= rest.length && !empty) return null;
  return (token) => {
    const piece = model.detokenize([token], false, [token]);
    if (!piece || model.isEogToken(token)) return false;
    const whole = text + piece;
    if (!whole.startsWith(rest) && !rest.startsWith(whole)) return false;
    return !empty || !/[\r\n]/.test(whole.slice(rest.length));
  };
}

function ended(text, { rest, kind, indent }) {
  const fill = text.slice(rest.length);
  if (text.length < rest.length) return false;
  if (kind !== "block") return /\S[^\r\n]*[\r\n]/.test(fill) || /^[\r\n]/.test(fill);
  const whole = fill.split("\n").slice(1, -1).filter((line) => line.trim());
  return GOES_ON && whole.some((line) => line.search(/\S/) < indent);
}

async function complete(one) {
  await sequence.clearHistory();
  const made = [];
  let tokens = asked(one), text = "", chance = 1;
  while (made.length < one.most && !ended(text, one)) {
    const [token, probability] = await next(tokens, constraint(text, one));
    if (token === null || model.isEogToken(token) || model.detokenize([token], true).startsWith("<|")) break;
    chance *= text.length < one.rest.length ? 1 : probability;
    made.push(token);
    tokens = [token];
    text = model.detokenize(made);
  }
  return { completion: text.slice(one.rest.length), steps: made.length, chance };
}

const cases = readFileSync(casesFile, "utf8").trim().split("\n").map((line) => JSON.parse(line));
await complete(cases[0]); // not what is measured
const out = openSync(outFile, "w");
for (const one of cases) {
  const began = performance.now();
  const done = await complete(one);
  writeSync(out, JSON.stringify({ id: one.id, ...done, ms: performance.now() - began }) + "\n");
}
closeSync(out);
process.exit(0); // the library's threads would keep the process for a while
