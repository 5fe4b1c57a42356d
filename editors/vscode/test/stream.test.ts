import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_UPDATES, QUIET_MS, Suggestion, wait } from "../src/stream.ts";

const range = { start: { line: 0, character: 4 }, end: { line: 0, character: 4 } };
const item = (insertText: string) => ({ insertText, range });
const value = (text: string) => ({ items: [item(text)], done: false });

function shown(...texts: string[]): Suggestion {
  const suggestion = new Suggestion();
  for (const text of texts) suggestion.hear(value(text));
  return suggestion;
}

test("before the first value there is no answer", () => {
  assert.equal(new Suggestion().settled, false);
});

test("the editor gets what may be shown by now", () => {
  const suggestion = shown("a = 1", "a = 1\nb");
  assert.deepEqual(suggestion.give(), [item("a = 1\nb")]);
  assert.equal(suggestion.growing, true);
});

test("it is drawn again for another line, but not for another word", () => {
  const suggestion = shown("let best");
  suggestion.give();
  suggestion.hear(value("let best = values"));
  assert.equal(suggestion.stale, false);
  suggestion.hear(value("let best = values\nfor"));
  assert.equal(suggestion.stale, true);
  suggestion.give();
  assert.equal(suggestion.stale, false);
});

test("at the end the rest of the line is drawn, and the other candidates are there", () => {
  const suggestion = shown("let best");
  suggestion.give();
  suggestion.end([item("let best = 1"), item("let worst")]);
  assert.equal(suggestion.stale, true);
  assert.equal(suggestion.give().length, 2);
  assert.equal(suggestion.growing, false);
});

test("the same text at the end is not drawn again", () => {
  const suggestion = shown("a = 1");
  suggestion.give();
  suggestion.end([item("a = 1")]);
  assert.equal(suggestion.stale, false);
});

test("a suggestion is drawn again a few times at most", () => {
  const suggestion = shown("0");
  suggestion.give();
  for (let lines = 1; lines <= MOST_UPDATES; lines++) {
    suggestion.hear(value("0" + "\nx".repeat(lines)));
    assert.equal(suggestion.stale, true);
    suggestion.give();
  }
  suggestion.hear(value("0" + "\nx".repeat(9)));
  assert.equal(suggestion.stale, false);
});

test("what is shown stays, whatever the answer says", () => {
  for (const answer of [[], [item("b = 2")]]) {
    const suggestion = shown("a = 1");
    suggestion.give();
    suggestion.end(answer);
    assert.equal(suggestion.stale, false);
  }
});

test("a request that was superseded keeps what is shown", () => {
  const suggestion = shown("a = 1");
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
