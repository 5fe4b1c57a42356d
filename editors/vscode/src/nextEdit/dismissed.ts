/** The edits that the user has dismissed. They are known by place and text, and move with the text around them. */

/** `text` in the place of what stands from `start` to `end` (offsets) of the document `uri`. */
export interface Dismissal {
  uri: string;
  start: number;
  end: number;
  text: string;
}

/** A change of a document as VS Code reports it. */
export interface Moved {
  rangeOffset: number;
  rangeLength: number;
  text: string;
}

export class Dismissed {
  private all: Dismissal[] = [];

  add(dismissal: Dismissal): void {
    this.all.push(dismissal);
  }

  has({ uri, start, end, text }: Dismissal): boolean {
    return this.all.some((one) => one.uri === uri && one.start === start && one.end === end && one.text === text);
  }

  /** The document has changed. A place that was written in is another place. */
  follow(uri: string, changes: readonly Moved[]): void {
    for (const { rangeOffset, rangeLength, text } of changes) {
      const by = text.length - rangeLength;
      this.all = this.all.flatMap((one) => {
        if (one.uri !== uri || rangeOffset >= one.end) return [one];
        return rangeOffset + rangeLength <= one.start ? [{ ...one, start: one.start + by, end: one.end + by }] : [];
      });
    }
  }
}
