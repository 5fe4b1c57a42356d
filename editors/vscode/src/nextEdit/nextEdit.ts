/**
 * Next edits: the server carries the user's last edit over to a similar place of the document. It is drawn there until
 * the text changes, and keys apply or dismiss it.
 */

import {
  Disposable,
  Selection,
  type TextDocument,
  type TextDocumentChangeEvent,
  type TextEditor,
  TextEditorRevealType,
  commands,
  window,
  workspace,
} from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";

import { say } from "../fills.ts";
import { SCHEMES } from "../server.ts";
import { Asking, alone, mode } from "./asking.ts";
import { type Change, change, touches } from "./change.ts";
import { type Dismissal, Dismissed } from "./dismissed.ts";
import { Drawing, rangeOf } from "./drawing.ts";
import { tab } from "./keys.ts";
import { type Edit, answers, tell, tellFocus, tellTaken } from "./wire.ts";

interface Shown {
  editor: TextEditor;
  edit: Edit;
  change: Change;
  why: string;
  jumped: boolean; // Tab has brought the cursor to the edit
}

export class NextEdit implements Disposable {
  private shown: Shown | undefined;
  private line: number | undefined; // of the cursor
  private readonly asking: Asking;
  private readonly dismissed = new Dismissed();
  private readonly drawing = new Drawing();
  private readonly listeners: Disposable;

  /** `occupied`: whether a suggestion or a popup stands at the cursor. */
  constructor(
    private readonly client: () => LanguageClient | undefined,
    occupied: () => boolean,
  ) {
    this.asking = new Asking(client, occupied, (editor, edit) => this.show(editor, edit));
    this.listeners = Disposable.from(
      workspace.onDidChangeTextDocument((event) => this.changed(event)),
      workspace.onDidCloseTextDocument((document) => document === this.shown?.editor.document && this.clear()),
      workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("caesura") && this.clear()),
      window.onDidChangeActiveTextEditor((editor) => this.switched(editor)),
      window.onDidChangeTextEditorSelection(({ textEditor }) => this.moved(textEditor)),
      window.onDidChangeTextEditorVisibleRanges(({ textEditor }) => this.point(textEditor)),
    );
  }

  /** Ask, because the user wants it. */
  async next(): Promise<void> {
    this.clear();
    const editor = window.activeTextEditor;
    if (mode() === "off") return say("Next edits are off; the setting caesura.nextEdit turns them on.");
    if (!answers(this.client())) return say("Caesura's server gives no next edits; a click on its status tells why.");
    if (!editor || !alone(editor)) return say("Put one cursor into a document, without a selection.");
    if (!(await this.asking.ask(editor))) say("There is no next edit for this place.");
  }

  /** Go to the edit, or apply it if the cursor is there. */
  async take(): Promise<void> {
    const { shown } = this;
    if (!shown) return;
    if (touches(shown.change, shown.editor.selection.active.line)) await this.apply(shown);
    else this.jump(shown);
  }

  /** Never show this edit in this place again. */
  dismiss(): void {
    if (!this.shown) return;
    const { editor, edit, change } = this.shown;
    this.dismissed.add(dismissal(editor.document, change));
    tell(this.client(), "caesura/didDismissInlineEdit", edit);
    this.clear();
  }

  dispose(): void {
    this.clear();
    this.drawing.dispose();
    this.listeners.dispose();
  }

  private changed({ document, contentChanges }: TextDocumentChangeEvent): void {
    if (!contentChanges.length) return;
    this.dismissed.follow(document.uri.toString(), contentChanges);
    if (document === this.shown?.editor.document) this.clear();
    if (document === window.activeTextEditor?.document) this.asking.plan();
  }

  private switched(editor: TextEditor | undefined): void {
    this.clear();
    this.line = undefined;
    const document = editor?.document;
    tellFocus(this.client(), document && SCHEMES.includes(document.uri.scheme) ? document : undefined);
  }

  private moved(editor: TextEditor): void {
    if (editor !== window.activeTextEditor) return;
    const { line } = editor.selection.active;
    const elsewhere = line !== this.line;
    this.line = line;
    if (!this.shown) return elsewhere ? this.asking.plan() : undefined;
    this.shown.jumped &&= touches(this.shown.change, line);
    this.point(editor);
    this.bindKeys();
  }

  /** The cursor or the visible part has changed. */
  private point(editor: TextEditor): void {
    if (editor === this.shown?.editor) this.drawing.point(editor, this.shown.change, this.shown.why);
  }

  private show(editor: TextEditor, edit: Edit): boolean {
    const { document } = editor;
    const range = this.client()?.protocol2CodeConverter.asRange(edit.range);
    const found = range && change(range.start, document.getText(range), edit.text);
    if (!found || this.dismissed.has(dismissal(document, found))) return false;
    this.clear();
    const why = edit.why ? `Next edit, ${edit.why}` : "Next edit";
    this.shown = { editor, edit, change: found, why, jumped: false };
    this.bindKeys(); // before it is seen: a Tab that comes at once is meant for it
    this.drawing.draw(editor, found, why);
    tell(this.client(), "textDocument/didShowInlineEdit", edit);
    return true;
  }

  private jump(shown: Shown): void {
    const { editor, change } = shown;
    const place = rangeOf(change.range).start;
    shown.jumped = true;
    editor.selection = new Selection(place, place);
    editor.revealRange(editor.selection, TextEditorRevealType.InCenterIfOutsideViewport);
  }

  /** As one step to undo. */
  private async apply({ editor, edit, change }: Shown): Promise<void> {
    this.clear();
    const place = rangeOf(change.range);
    const options = { undoStopBefore: true, undoStopAfter: true };
    if (!(await editor.edit((builder) => builder.replace(place, change.text), options))) return;
    const { line, character } = change.end;
    this.line = line; // no move of the user's
    editor.selection = new Selection(line, character, line, character);
    await tellTaken(this.client(), edit);
    this.asking.askUnasked();
  }

  private bindKeys(): void {
    const does = this.shown && tabFor(this.shown);
    void commands.executeCommand("setContext", "caesura.nextEditShown", this.shown !== undefined);
    void commands.executeCommand("setContext", "caesura.nextEditAtCursor", does === "apply");
    void commands.executeCommand("setContext", "caesura.nextEditElsewhere", does === "jump");
  }

  /** Nothing is shown or asked for. */
  private clear(): void {
    this.asking.cancel();
    if (!this.shown) return;
    this.drawing.clear(this.shown.editor);
    this.shown = undefined;
    this.bindKeys();
  }
}

function tabFor({ editor, change, jumped }: Shown): "apply" | "jump" | undefined {
  const { line, character } = editor.selection.active;
  const before = editor.document.lineAt(line).text.slice(0, character);
  return alone(editor) ? tab(touches(change, line), jumped, before) : undefined;
}

function dismissal(document: TextDocument, { range, text }: Change): Dismissal {
  const { start, end } = rangeOf(range);
  return { uri: document.uri.toString(), start: document.offsetAt(start), end: document.offsetAt(end), text };
}
