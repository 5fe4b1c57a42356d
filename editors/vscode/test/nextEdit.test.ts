import assert from "node:assert/strict";
import { test } from "node:test";

import { change } from "../src/nextEdit/change.ts";
import { wordDiff } from "../src/nextEdit/diff.ts";
import { Dismissed } from "../src/nextEdit/dismissed.ts";
import { inWord, tab } from "../src/nextEdit/keys.ts";

const at = (line: number, character: number) => ({ line, character });

function applied(before: string, after: string): string {
  const hunks = wordDiff(before, after).reverse();
  return hunks.reduce((text, { start, end, text: added }) => text.slice(0, start) + added + text.slice(end), before);
}

test("a renamed word is one hunk, and the words around it stay", () => {
  assert.deepEqual(wordDiff("total = width + 1", "total = height + 1"), [{ start: 8, end: 13, text: "height" }]);
});

test("words with only a blank between them are replaced together", () => {
  assert.deepEqual(wordDiff("let best of", "let the worst of"), [{ start: 4, end: 8, text: "the worst" }]);
});

test("new lines in front of an indented line are whole lines", () => {
  const before = "def f():\n    a()\n    c()\n";
  const after = "def f():\n    a()\n    b()\n    c()\n";
  assert.deepEqual(wordDiff(before, after), [{ start: 17, end: 17, text: "    b()\n" }]);
});

test("the hunks make the new text, whatever it is", () => {
  const pieces = ["x", " ", "\n", "    ", "ab", "(", "é", "😀"];
  let seed = 1;
  const text = () => {
    seed = (seed * 48271) % 2147483647;
    return Array.from({ length: seed % 9 }, (_, i) => pieces[(seed >> i) % pieces.length]).join("");
  };
  for (let round = 0; round < 2000; round++) {
    const [before, after] = [text(), text()];
    assert.equal(applied(before, after), after, JSON.stringify([before, after]));
  }
});

test("a very long replacement is one hunk", () => {
  const [hunk, ...others] = wordDiff("a ".repeat(2000), "b ".repeat(2000));
  assert.equal(hunk?.start, 0);
  assert.deepEqual(others, []);
});

test("the same text is no change, also with other line ends", () => {
  assert.equal(change(at(3, 0), "a\r\nb", "a\nb"), undefined);
});

test("new words stand after the ones that go", () => {
  const found = change(at(3, 4), "width * 2", "height * 2");
  assert.deepEqual(found?.removed, [{ start: at(3, 4), end: at(3, 9) }]);
  assert.deepEqual(found?.words, [{ at: at(3, 9), text: "height" }]);
  assert.deepEqual(found?.blocks, []);
  assert.deepEqual([found?.text, found?.end], ["height", at(3, 10)]);
});

test("whole new lines are drawn from the line before them on", () => {
  const found = change(at(7, 0), "a()\nd()\n", "a()\nb()\nc()\nd()\n");
  assert.deepEqual(found?.blocks, [{ line: 7, texts: ["b()", "c()"] }]);
  assert.deepEqual(found?.words, []);
  assert.deepEqual(found?.removed, []);
  assert.deepEqual([found?.range, found?.end], [{ start: at(8, 0), end: at(8, 0) }, at(10, 0)]);
});

test("a line that gets longer and goes on has words and a block", () => {
  const found = change(at(2, 0), "f(a)", "f(a,\n  b)");
  assert.deepEqual(found?.words, [{ at: at(2, 3), text: "," }]);
  assert.deepEqual(found?.blocks, [{ line: 2, texts: ["  b"] }]);
});

test("lines that go are removed over their ends", () => {
  const found = change(at(5, 0), "a()\nb()\nc()\n", "a()\nc()\n");
  assert.deepEqual(found?.removed, [{ start: at(6, 0), end: at(7, 0) }]);
  assert.equal(found?.text, "");
});

const DISMISSED = { uri: "file:///a.py", start: 10, end: 14, text: "new" };

function dismissed(...changes: { rangeOffset: number; rangeLength: number; text: string }[]): Dismissed {
  const found = new Dismissed();
  found.add(DISMISSED);
  found.follow(DISMISSED.uri, changes);
  return found;
}

test("a dismissed edit stays dismissed, in its place alone", () => {
  const found = dismissed();
  assert.equal(found.has(DISMISSED), true);
  for (const other of [{ text: "newer" }, { start: 11 }, { uri: "file:///b.py" }]) {
    assert.equal(found.has({ ...DISMISSED, ...other }), false);
  }
});

test("a dismissed edit moves with the text before it", () => {
  const found = dismissed({ rangeOffset: 20, rangeLength: 0, text: "x" }, { rangeOffset: 2, rangeLength: 1, text: "abcd" });
  assert.equal(found.has(DISMISSED), false);
  assert.equal(found.has({ ...DISMISSED, start: 13, end: 17 }), true);
});

test("a place that was written in is another place", () => {
  assert.equal(dismissed({ rangeOffset: 12, rangeLength: 1, text: "x" }).has(DISMISSED), false);
});

test("a change in another document moves nothing", () => {
  const found = dismissed();
  found.follow("file:///b.py", [{ rangeOffset: 0, rangeLength: 0, text: "x" }]);
  assert.equal(found.has(DISMISSED), true);
});

test("nothing is asked inside a word, but at its end", () => {
  assert.equal(inWord("width", 3), true);
  assert.equal(inWord("width", 5), false);
  assert.equal(inWord("(width", 1), false);
});

test("Tab jumps to the edit, and then applies it", () => {
  assert.equal(tab(false, false, "x = 1"), "jump");
  assert.equal(tab(true, true, "    "), "apply");
  assert.equal(tab(true, false, "x = "), "apply");
});

test("Tab indents after blanks", () => {
  assert.equal(tab(false, false, "    "), undefined);
  assert.equal(tab(true, false, ""), undefined);
});
