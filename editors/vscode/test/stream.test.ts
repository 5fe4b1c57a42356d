import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_UPDATES, QUIET_MS, Suggestion, wait } from "../src/stream.ts";

const range = { start: { line: 0, character: 4 }, end: { line: 0, character: 4 } };
const item = (insertText: string) => ({ insertText, range });
const value = (text: string, ready: number) => ({ items: [item(text)], ready, done: false });

function shown(...states: [string, number][]): Suggestion {
  const suggestion = new Suggestion();
  for (const [text, ready] of states) suggestion.hear(value(text, ready));
  return suggestion;
}

test("a draft of which nothing is ready is no answer yet", () => {
  const suggestion = shown(["return width", 0]);
  assert.equal(suggestion.settled, false);
  assert.equal(suggestion.draft, "return width");
});

test("the editor gets what is ready, and no more", () => {
  const suggestion = shown(["a = 1\nb", 5]);
  assert.deepEqual(suggestion.give(), [item("a = 1")]);
  assert.equal(suggestion.growing, true);
});

test("a later value that has less ready takes nothing away", () => {
  const suggestion = shown(["a = 1\nb", 5], ["a = 2\nb", 0]);
  assert.deepEqual(suggestion.give(), [item("a = 1")]);
});

test("it is drawn again for another line, but not for another word", () => {
  const suggestion = shown(["let best", 8]);
  suggestion.give();
  suggestion.hear(value("let best = values", 17));
  assert.equal(suggestion.stale, false);
  suggestion.hear(value("let best = values\nfor", 21));
  assert.equal(suggestion.stale, true);
  suggestion.give();
  assert.equal(suggestion.stale, false);
});

test("at the end the rest of the line is drawn, and the other candidates are there", () => {
  const suggestion = shown(["let best", 8]);
  suggestion.give();
  suggestion.end([item("let best = 1"), item("let worst")]);
  assert.equal(suggestion.stale, true);
  assert.equal(suggestion.give().length, 2);
  assert.equal(suggestion.growing, false);
});

test("the same text at the end is not drawn again", () => {
  const suggestion = shown(["a = 1", 5]);
  suggestion.give();
  suggestion.end([item("a = 1")]);
  assert.equal(suggestion.stale, false);
});

test("a suggestion is drawn again a few times at most", () => {
  const suggestion = shown(["0", 1]);
  suggestion.give();
  for (let lines = 1; lines <= MOST_UPDATES; lines++) {
    suggestion.hear(value("0" + "\nx".repeat(lines), 1 + 2 * lines));
    assert.equal(suggestion.stale, true);
    suggestion.give();
  }
  suggestion.hear(value("0" + "\nx".repeat(9), 19));
  assert.equal(suggestion.stale, false);
});

test("what is taken back goes at once", () => {
  const suggestion = shown(["a = 1", 5]);
  suggestion.give();
  suggestion.end([]);
  assert.equal(suggestion.stale, true);
  assert.deepEqual(suggestion.give(), []);
});

test("a request that was superseded keeps what is shown", () => {
  const suggestion = shown(["a = 1", 5]);
  suggestion.give();
  suggestion.end(undefined);
  assert.equal(suggestion.stale, false);
  assert.equal(suggestion.text, "a = 1");
});

test("nothing is an answer, too", () => {
  const suggestion = new Suggestion();
  suggestion.end([]);
  assert.equal(suggestion.settled, true);
  assert.equal(suggestion.stale, false);
});

test("nothing is drawn again while somebody types", () => {
  assert.equal(wait(1000, 1000), QUIET_MS);
  assert.equal(wait(1000 + QUIET_MS, 1000), 0);
  assert.equal(wait(9000, 1000), 0);
});
