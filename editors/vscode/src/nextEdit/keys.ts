/** When a next edit may be asked for, and what Tab does while one is shown. No VS Code here. */

/** Whether the cursor stands inside a word of its line. */
export function inWord(line: string, character: number): boolean {
  return /[\p{L}\p{N}_]$/u.test(line.slice(0, character)) && /^[\p{L}\p{N}_]/u.test(line.slice(character));
}

/**
 * `atCursor`: the cursor is at the edit; `jumped`: Tab has brought it there; `before`: its line up to the cursor.
 * Undefined: Tab is VS Code's, which indents after blanks.
 */
export function tab(atCursor: boolean, jumped: boolean, before: string): "apply" | "jump" | undefined {
  const indents = !before.trim();
  if (atCursor) return jumped || !indents ? "apply" : undefined;
  return indents ? undefined : "jump";
}
