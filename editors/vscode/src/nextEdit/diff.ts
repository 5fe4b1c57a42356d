/** The words that differ between two texts whose lines end with "\n". No VS Code here. */

const MOST_CELLS = 250_000; // of the table: 500 words on each side; larger texts are compared line by line first
const WORD = /\n|[^\S\n]+|[\p{L}\p{N}_]+|./gu;
const LINE = /[^\n]*\n|[^\n]+/gu;

/** `text` replaces the old text from `start` to `end`; offsets are UTF-16 units of the old text. */
export interface Hunk {
  start: number;
  end: number;
  text: string;
}

/** The hunks that turn `before` into `after`, in order, with at least one unchanged word between two of them. */
export function wordDiff(before: string, after: string): Hunk[] {
  const words = (text: string) => text.match(WORD)?.length ?? 0;
  const long = words(before) * words(after) > MOST_CELLS;
  const hunks = long ? hunksBy(LINE, before, after).flatMap((hunk) => inWords(before, hunk)) : hunksBy(WORD, before, after);
  return joined(before, hunks).map((hunk) => wholeLines(before, hunk));
}

/** The hunks of words in a hunk of lines. */
function inWords(before: string, { start, end, text }: Hunk): Hunk[] {
  const found = hunksBy(WORD, before.slice(start, end), text);
  return found.map((hunk) => ({ start: start + hunk.start, end: start + hunk.end, text: hunk.text }));
}

function hunksBy(unit: RegExp, before: string, after: string): Hunk[] {
  const removed = before.match(unit) ?? [];
  const added = after.match(unit) ?? [];
  const least = Math.min(removed.length, added.length);
  let head = 0;
  while (head < least && removed[head] === added[head]) head++;
  let tail = 0;
  while (tail < least - head && removed.at(-1 - tail) === added.at(-1 - tail)) tail++;
  const start = removed.slice(0, head).join("").length;
  return between(removed.slice(head, removed.length - tail), added.slice(head, added.length - tail), start);
}

/** The hunks of two rows of units; the first old one stands at `start`. */
function between(removed: string[], added: string[], start: number): Hunk[] {
  const hunks: Hunk[] = [];
  let [old, fresh, at] = [0, 0, start];
  for (const [nextOld, nextFresh] of [...common(removed, added), [removed.length, added.length] as const]) {
    const end = at + removed.slice(old, nextOld).join("").length;
    const text = added.slice(fresh, nextFresh).join("");
    if (end > at || text) hunks.push({ start: at, end, text });
    at = end + (removed[nextOld]?.length ?? 0);
    [old, fresh] = [nextOld + 1, nextFresh + 1];
  }
  return hunks;
}

/** The indices of a longest common subsequence, in pairs. */
function common(a: string[], b: string[]): (readonly [number, number])[] {
  if (a.length * b.length > MOST_CELLS) return [];
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width); // of what begins at (i, j)
  const at = (i: number, j: number) => longest[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const pairs: (readonly [number, number])[] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (at(i + 1, j) >= at(i, j + 1)) i++;
    else j++;
  }
  return pairs;
}

/** Hunks with only blanks between them are one: two words with a kept blank between them are hard to read. */
function joined(before: string, hunks: Hunk[]): Hunk[] {
  const found: Hunk[] = [];
  for (const hunk of hunks) {
    const last = found.at(-1);
    const gap = before.slice(last?.end ?? 0, hunk.start);
    if (!last || /[^ \t]/.test(gap)) found.push(hunk);
    else found.splice(-1, 1, { start: last.start, end: hunk.end, text: last.text + gap + hunk.text });
  }
  return found;
}

/** New lines in front of an indented line are whole lines, not the rest of one and the next one's indentation. */
function wholeLines(before: string, hunk: Hunk): Hunk {
  const { start, end, text } = hunk;
  const indent = before.slice(before.lastIndexOf("\n", start - 1) + 1, start);
  const slides = start === end && start > 0 && !indent.trim() && text.endsWith(`\n${indent}`);
  if (!slides) return hunk;
  const from = start - indent.length;
  return { start: from, end: from, text: indent + text.slice(0, text.length - indent.length) };
}
