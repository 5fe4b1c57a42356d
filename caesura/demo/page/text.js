// The page counts in UTF-16 as the browser does, the engine in code points: converted here and nowhere else.

export const points = (text, end = text.length) => [...text.slice(0, end)].length;

/** A text whose parts are named by code points. */
export class Points {
  #parts;

  constructor(text) {
    this.#parts = [...text];
  }

  slice(start, end) {
    return this.#parts.slice(start, end).join("");
  }

  get length() {
    return this.#parts.length;
  }
}
