// The page: documents and gaps in an editor, a fill asked for, both runs on one clock.
import { Run } from "/canvas.js";
import { Editor } from "/editor.js";
import { Playback } from "/playback.js";
import { ask, enter, LanguageServer, stream } from "/server.js";
import { points } from "/text.js";

const $ = (id) => document.getElementById(id);
const server = new LanguageServer();
const editor = new Editor($("editor"), server, { onChange: changed, onFill: () => $("ask").requestSubmit() });
const runs = { diffusion: new Run($("diffusion")), left_to_right: new Run($("left_to_right")) };
const playback = new Playback({ slider: $("at"), ticks: $("ticks"), button: $("play"), speed: $("speed") }, show);
const STATES = {
  connecting: "looking for the engine",
  loading: "the model is loading",
  ready: "model loaded",
  unavailable: "no engine",
  off: "off",
};
let asked = null; // the gap that the runs are of
let under = null; // ends the fill that is under way
let reading = ""; // what there is to say of the text around the gap

for (const run of Object.values(runs)) run.part(".canvas").dataset.empty = "Choose a gap, then Fill.";
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  fill();
});
$("sampler").addEventListener("change", how);
for (const run of Object.values(runs)) {
  run.part(".insert").addEventListener("click", () => editor.insert(asked.range, run.ended.inserted));
}
how();
enter().then(() => ask("/documents")).then(begin, refuse);

function begin(found) {
  server.run(hear).catch((error) => engine("unavailable", error.message));
  const choose = (chosen) => {
    for (const [index, tab] of [...$("documents").children].entries()) {
      tab.ariaSelected = String(found[index] === chosen);
      tab.tabIndex = found[index] === chosen ? 0 : -1;
    }
    const first = editor.open(chosen.name);
    $("gaps").replaceChildren(...chosen.gaps.map((_, index) => {
      const button = document.createElement("button");
      button.textContent = `gap ${index + 1}`;
      button.addEventListener("click", () => editor.go(index));
      return button;
    }));
    if (first) editor.go(0);
  };
  for (const one of found) {
    editor.add(one);
    const tab = document.createElement("button");
    tab.role = "tab";
    tab.setAttribute("aria-controls", "editor");
    tab.textContent = one.name;
    tab.addEventListener("click", () => choose(one));
    tab.addEventListener("keydown", ({ key }) => {
      const next = { ArrowRight: tab.nextSibling, ArrowLeft: tab.previousSibling }[key];
      next?.click();
      next?.focus();
    });
    $("documents").append(tab);
  }
  choose(found[0]);
}

function refuse(error) {
  document.querySelector("main").remove();
  engine("unavailable", error.message);
}

async function fill() {
  under?.abort();
  under = new AbortController();
  const { signal } = under;
  asked = { ...editor.ask(), at: new Date().toLocaleTimeString() };
  const { text, start, end, language } = asked;
  for (const run of Object.values(runs)) {
    run.clear(text.slice(0, start), text.slice(end));
    run.show(0);
  }
  playback.clear();
  changed();
  say("The model reads the text around the gap.");
  const wanted = { text, start: points(text, start), end: points(text, end), language };
  wanted.sampler = $("sampler").value;
  wanted.seed = $("seed").valueAsNumber || 0;
  try {
    for await (const event of stream("/fill", wanted, signal)) hearFill(event);
  } catch (error) {
    if (!signal.aborted) say(error.message, true);
  }
  if (!signal.aborted) changed();
}

function hearFill(event) {
  if (event.type === "waiting") say("The engine is starting and loads its model.");
  else if (event.type === "failed") say(event.message, true);
  else if (event.type === "read") say(reading = `Both start with the text around the gap read: ${Math.round(event.ms)} ms.`);
  else {
    const run = runs[event.run];
    run.hear(event);
    run.show(event.ms);
    if (runs.diffusion.ended && runs.left_to_right.ended) {
      const took = Object.values(runs).map((each) => `${Math.round(each.lasts)} ms`);
      say(`${asked.name}, ${asked.at}. ${reading} Caesura took ${took[0]}, left to right ${took[1]}.`);
      playback.begin(runs);
    }
  }
}

/** Draw a time; in words for those who do not see it. */
function show(ms) {
  const steps = Object.values(runs).map((run) => `step ${run.show(ms)} of ${run.ended?.steps ?? 0}`);
  return `${Math.round(ms)} ms; Caesura ${steps[0]}; left to right ${steps[1]}`;
}

/** A fill is for the text that it was asked for, and for no other. */
function changed() {
  for (const run of Object.values(runs)) {
    run.part(".insert").disabled = !(run.ended?.inserted && asked?.current());
  }
}

function how() {
  runs.diffusion.part(".how").textContent = $("sampler").selectedOptions[0].textContent;
}

function hear(method, params) {
  if (method === "caesura/status") engine(params.state, params.message);
}

function engine(state, message) {
  $("engine").dataset.state = state;
  $("engine").textContent = message || STATES[state] || state;
}

function say(sentence, bad = false) {
  $("said").textContent = sentence;
  $("said").toggleAttribute("data-bad", bad);
}
