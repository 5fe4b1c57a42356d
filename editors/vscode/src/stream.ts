/**
 * What the server streams of one suggestion, and when the editor should be made to draw it again. No VS Code and no
 * clock here.
 *
 * VS Code redraws a suggestion only if it is hidden and asked for again, which costs a frame without it. So it is worth
 * it for a whole line, or for the end, a few times at most, and never while somebody types.
 */

export const MOST_UPDATES = 3;
export const QUIET_MS = 150; // since the last key

export interface Position {
  line: number;
  character: number;
}

export interface Range {
  start: Position;
  end: Position;
}

export interface Item {
  insertText: string;
  range: Range;
  command?: { title: string; command: string; arguments?: unknown[] };
}

/** A `$/progress` value of `caesura/inlineCompletionStream`: docs/protocol.md. */
export interface Value {
  items: Item[];
  done: boolean;
}

export class Suggestion {
  /** The server has answered: no more will come. */
  over = false;
  private ready: Item[] = [];
  private given: string | undefined;
  private updates = 0;

  /** What may be shown by now. The last value is the response, too, and is taken from there. */
  hear(value: Value): void {
    if (!this.over && !value.done) this.ready = value.items;
  }

  /** The response; undefined where there is none, since something newer came or the request failed. */
  end(items: Item[] | undefined): void {
    this.over = true;
    if (items) this.ready = items;
  }

  /** What may be shown: the best candidate. */
  get text(): string {
    return this.ready[0]?.insertText ?? "";
  }

  /** Whether there is an answer for the editor. */
  get settled(): boolean {
    return this.over || this.text !== "";
  }

  /** What the editor gets, which it shows from now on. */
  give(): Item[] {
    if (this.given !== undefined && this.text !== this.given) this.updates += 1;
    this.given = this.text;
    return this.ready;
  }

  /** Whether more may come of what the editor shows. */
  get growing(): boolean {
    return !this.over && Boolean(this.given);
  }

  /** Whether what the editor shows should be drawn again, with what has been added to it. */
  get stale(): boolean {
    const { given, text } = this;
    if (given === undefined || text === given || !text.startsWith(given)) return false;
    const more = text.slice(given.length);
    return this.updates < MOST_UPDATES && (this.over || more.includes("\n"));
  }
}

/** How long to wait before a suggestion may be drawn again. */
export function wait(now: number, lastKey: number): number {
  return Math.max(0, lastKey + QUIET_MS - now);
}
