/**
 * A next edit on the screen, by decorations: VS Code's own view of such edits is proposed API, which no published
 * extension may use. A decoration has one line of text and makes no room, so new lines stand to the right of old ones.
 */

import {
  type DecorationOptions,
  type Disposable,
  MarkdownString,
  OverviewRulerLane,
  Position,
  Range,
  type TextEditor,
  ThemeColor,
  window,
} from "vscode";

import type { Block, Change } from "./change.ts";

const MOST_LINES = 12; // of a block
const GAP = 4; // columns between a line and the new one next to it
const GHOST = new ThemeColor("editorGhostText.foreground");

export class Drawing implements Disposable {
  private readonly removed = window.createTextEditorDecorationType({
    textDecoration: "line-through",
    backgroundColor: new ThemeColor("diffEditor.removedTextBackground"),
  });
  private readonly added = window.createTextEditorDecorationType({});
  private readonly place = window.createTextEditorDecorationType({
    isWholeLine: true,
    overviewRulerColor: new ThemeColor("editorOverviewRuler.modifiedForeground"),
    overviewRulerLane: OverviewRulerLane.Left,
  });
  private readonly hint = window.createTextEditorDecorationType({});

  draw(editor: TextEditor, change: Change, why: string): void {
    const words = change.words.map(({ at, text }) => after(new Position(at.line, at.character), text, editor));
    const blocks = change.blocks.flatMap((block) => beside(editor, block));
    editor.setDecorations(this.removed, change.removed.map(rangeOf));
    editor.setDecorations(this.added, [...words, ...blocks]);
    editor.setDecorations(this.place, [{ range: rangeOf(change.range), hoverMessage: hover(editor, change, why) }]);
    this.point(editor, change, why);
  }

  /** Say at the end of the cursor's line where the edit is, if its place is not visible. */
  point(editor: TextEditor, { range: { start } }: Change, why: string): void {
    const { document, selection, visibleRanges } = editor;
    const visible = visibleRanges.some((one) => one.start.line <= start.line && start.line <= one.end.line);
    const cursor = selection.active.line;
    const text = `next edit in line ${start.line + 1} ${start.line > cursor ? "↓" : "↑"}`;
    const end = document.lineAt(cursor).range.end;
    const shown = { ...after(end, text, editor, GAP), hoverMessage: new MarkdownString().appendText(why) };
    editor.setDecorations(this.hint, visible ? [] : [shown]);
  }

  clear(editor: TextEditor): void {
    for (const type of this.types) editor.setDecorations(type, []);
  }

  dispose(): void {
    for (const type of this.types) type.dispose();
  }

  private get types() {
    return [this.removed, this.added, this.place, this.hint];
  }
}

export function rangeOf({ start, end }: Change["range"]): Range {
  return new Range(start.line, start.character, end.line, end.character);
}

/** `text` in the ghost colour, `gap` columns after `at`. */
function after(at: Position, text: string, editor: TextEditor, gap = 0): DecorationOptions {
  const contentText = text.replaceAll("\t", " ".repeat(tabSize(editor))).replaceAll(" ", "\u00a0"); // else joined
  const look = { contentText, color: GHOST, margin: `0 0 0 ${gap}ch` };
  return { range: new Range(at, at), renderOptions: { after: look } };
}

/** The new lines, one to the right of each line, in one column; what has no line any more is counted in the last. */
function beside(editor: TextEditor, { line, texts }: Block): DecorationOptions[] {
  const { document } = editor;
  const room = Math.min(texts.length, MOST_LINES, document.lineCount - line);
  const lines = Array.from({ length: room }, (_, i) => document.lineAt(line + i));
  const widths = lines.map(({ text }) => [...text].reduce((sum, one) => sum + (one === "\t" ? tabSize(editor) : 1), 0));
  const column = Math.max(...widths) + GAP;
  const more = texts.length - room;
  return lines.map(({ range }, i) => {
    const text = `⏎ ${texts[i]}${more && i === room - 1 ? ` (and ${more} more)` : ""}`;
    return after(range.end, text, editor, column - (widths[i] ?? 0));
  });
}

function hover({ document }: TextEditor, { text }: Change, why: string): MarkdownString {
  const found = new MarkdownString().appendText(why);
  return text.trim() ? found.appendCodeblock(text, document.languageId) : found;
}

function tabSize({ options }: TextEditor): number {
  return typeof options.tabSize === "number" ? options.tabSize : 4;
}
