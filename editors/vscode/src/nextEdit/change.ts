/** What a next edit changes, and where its parts are drawn. No VS Code here. */

import type { Position, Range } from "../stream.ts";
import { type Hunk, wordDiff } from "./diff.ts";

/** New words on one line, drawn at `at`. */
export interface Words {
  at: Position;
  text: string;
}

/** New lines after `line`. VS Code makes no room for them, so each is drawn to the right of a line, from `line` on. */
export interface Block {
  line: number;
  texts: string[];
}

/** `text` replaces `range`, which begins and ends with something that changes; `end` is where the text then ends. */
export interface Change {
  range: Range;
  text: string;
  end: Position;
  removed: Range[];
  words: Words[];
  blocks: Block[];
}

/** The change from `before`, which stands at `start`, to `after`; undefined if they are the same. */
export function change(start: Position, before: string, after: string): Change | undefined {
  const [old, fresh] = [before.replaceAll("\r\n", "\n"), after.replaceAll("\r\n", "\n")];
  const hunks = wordDiff(old, fresh);
  const [first, last] = [hunks[0], hunks.at(-1)];
  if (!first || !last) return undefined;
  const at = (offset: number) => move(start, old.slice(0, offset));
  const text = fresh.slice(first.start, fresh.length - (old.length - last.end));
  const changed = hunks.filter((hunk) => hunk.end > hunk.start);
  return {
    range: { start: at(first.start), end: at(last.end) },
    text,
    end: move(at(first.start), text),
    removed: changed.map((hunk) => ({ start: at(hunk.start), end: at(hunk.end) })),
    ...drawn(hunks, at),
  };
}

/** Whether a cursor in that line is at a part of the change: a renaming leaves the lines between its places alone. */
export function touches({ range, removed, words, blocks }: Change, line: number): boolean {
  const within = removed.some(({ start, end }) => start.line <= line && line <= end.line);
  return within || line === range.start.line || [...words.map(({ at }) => at), ...blocks].some((part) => part.line === line);
}

function drawn(hunks: Hunk[], at: (offset: number) => Position): Pick<Change, "words" | "blocks"> {
  const words: Words[] = [];
  const blocks: Block[] = [];
  for (const { start, end, text } of hunks) {
    const place = at(end);
    if (start === end && place.character === 0 && place.line > 0 && text.endsWith("\n")) {
      blocks.push({ line: place.line - 1, texts: text.slice(0, -1).split("\n") });
      continue;
    }
    const [here, ...lines] = text.split("\n");
    if (here) words.push({ at: place, text: here });
    if (lines.length) blocks.push({ line: place.line, texts: lines });
  }
  return { words, blocks };
}

/** The position after `text`, which begins at `from`. */
function move(from: Position, text: string): Position {
  const lines = text.split("\n");
  const last = lines.at(-1)?.length ?? 0;
  if (lines.length === 1) return { line: from.line, character: from.character + last };
  return { line: from.line + lines.length - 1, character: last };
}
