// A run on the page: the gap between the lines around it, its tokens as they are at a time, and the figures.
import { Points } from "/text.js";

const AROUND = 4; // lines above and below
const OPEN = "\u2591";

const element = (name, text, ...classes) => {
  const made = document.createElement(name);
  made.textContent = text;
  made.classList.add(...classes);
  return made;
};

/** The tokens of a fill: its text in parts, each locked or a draft, with its probability. */
export function tokens({ text, locked, probabilities }) {
  const parts = new Points(text);
  let start = 0;
  return probabilities.map(([end, probability]) => {
    const token = { text: parts.slice(start, end), probability };
    token.locked = locked.some(([from, to]) => from <= start && end <= to);
    start = end;
    return token;
  });
}

export class Run {
  /** `frames` are the steps so far; `ended` is the answer. */
  constructor(article) {
    this.article = article;
    this.part = (name) => article.querySelector(name);
    this.clear();
  }

  clear(before = "", after = "") {
    this.before = before.split("\n").slice(-AROUND - 1).join("\n");
    this.after = after.split("\n").slice(0, AROUND + 1).join("\n");
    this.frames = [];
    this.ended = null;
    this.part(".clock").textContent = "";
    this.part(".figures").textContent = "";
    this.part(".canvas").replaceChildren();
  }

  hear(event) {
    this.frames.push(event);
    if (event.type === "ended") this.ended = event;
  }

  get lasts() {
    return this.frames.at(-1)?.ms ?? 0;
  }

  /** Show how it stood so many milliseconds after it began. */
  show(ms) {
    const passed = this.frames.filter((frame) => frame.ms <= ms);
    const frame = passed.at(-1);
    const step = frame?.step ?? frame?.steps ?? 0;
    this.part(".canvas").replaceChildren(
      element("span", this.before, "around"),
      ...(frame ? this.#gap(frame) : [element("span", OPEN, "open")]),
      element("span", this.after, "around"),
    );
    this.#follow();
    this.part(".clock").textContent = `${Math.round(Math.min(ms, this.lasts))} ms`;
    this.part(".figures").textContent = frame?.type === "ended" ? figures(frame) : this.#progress(step);
    return step;
  }

  #gap({ fill, type, inserted }) {
    const shown = tokens(fill);
    const drafts = shown.filter((token) => !token.locked).length;
    // What does not fit the text behind the gap is not inserted; an editor would not show it either.
    const kept = type === "ended" && fill.text.startsWith(inserted) ? inserted.length : Infinity;
    let length = 0;
    const spans = shown.map(({ text, locked, probability }) => {
      length += text.length;
      const span = element("span", text, "token", locked ? "locked" : "draft");
      span.classList.toggle("cut", length > kept);
      span.style.setProperty("--p", probability.toFixed(3));
      span.title = `${Math.round(probability * 100)} %, ${locked ? "locked" : "draft"}`;
      return span;
    });
    const open = type === "ended" ? 0 : Math.max(0, fill.open - drafts);
    return [...spans, element("span", OPEN.repeat(open), "open")];
  }

  /** Keep the end of the gap in sight. */
  #follow() {
    const canvas = this.part(".canvas");
    const { bottom } = canvas.lastChild.previousSibling.getBoundingClientRect();
    const least = canvas.getBoundingClientRect().bottom - canvas.clientHeight / 4;
    canvas.scrollTop = Math.max(0, canvas.scrollTop + bottom - least);
  }

  #progress(step) {
    return this.ended ? `step ${step} of ${this.ended.steps}` : step ? `step ${step}` : "waiting";
  }
}

function figures({ steps, tokens, inserted, stop }) {
  const written = tokens.canvas + tokens.lookup + tokens.left_to_right;
  const sources = [
    [tokens.canvas, "from the canvas"],
    [tokens.lookup, "from lookup"],
    [tokens.left_to_right, "left to right"],
  ].filter(([count]) => count);
  return [
    `${written} tokens in ${steps} forwards, ${(written / steps).toFixed(1)} each`,
    sources.map(([count, source]) => `${count} ${source}`).join(", "),
    stop === "complete" ? "" : `stopped by ${stop}`,
    inserted ? "" : "nothing that fits here",
  ].filter(Boolean).join(" \u00b7 ");
}
