/** When the server is asked for a next edit: after a pause, while nothing else is going on, once at a time. */

import { CancellationTokenSource, type TextEditor, window } from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";

import { SCHEMES } from "../server.ts";
import { setting } from "../settings.ts";
import { inWord } from "./keys.ts";
import { type Edit, answers, ask } from "./wire.ts";

const PAUSE_MS = 400; // after the last change or move

type Mode = "off" | "quiet" | "eager" | "manual";

export class Asking {
  private flight: CancellationTokenSource | undefined;
  private timer: NodeJS.Timeout | undefined;

  /** `occupied`: whether a suggestion or a popup stands at the cursor; `show` says whether it has drawn the edit. */
  constructor(
    private readonly client: () => LanguageClient | undefined,
    private readonly occupied: () => boolean,
    private readonly show: (editor: TextEditor, edit: Edit) => boolean,
  ) {}

  /** Ask after a pause, which this begins again. */
  plan(): void {
    this.cancel();
    if (automatic()) this.timer = setTimeout(() => this.askUnasked(), PAUSE_MS);
  }

  /** Ask at once, if nothing else is going on. */
  askUnasked(): void {
    const editor = window.activeTextEditor;
    if (editor && automatic() && this.free(editor)) void this.ask(editor, (one) => this.free(one));
  }

  /**
   * Ask in place of what was asked before, because the user wants it or, with `still`, unasked: then that is checked
   * when the answer is there. Whether an edit is drawn.
   */
  async ask(editor: TextEditor, still?: (editor: TextEditor) => boolean): Promise<boolean> {
    this.cancel();
    const client = this.client();
    const { document, selection } = editor;
    if (!answers(client) || !SCHEMES.includes(document.uri.scheme)) return false;
    const flight = (this.flight = new CancellationTokenSource());
    const edit = await ask(client, document, selection.active, !still, flight.token);
    if (flight !== this.flight) return false;
    this.flight = undefined;
    return edit !== undefined && editor === window.activeTextEditor && (still ?? alone)(editor) && this.show(editor, edit);
  }

  cancel(): void {
    clearTimeout(this.timer);
    this.flight?.cancel();
    this.flight = undefined;
  }

  /**
   * Whether nothing else is going on. No extension can learn that a snippet is being filled in (`inSnippetMode` is known
   * to key bindings alone): a place with a default text is a selection, which is seen here; an empty one is not.
   */
  private free(editor: TextEditor): boolean {
    const { document, selection } = editor;
    const { line, character } = selection.active;
    return alone(editor) && !this.occupied() && !inWord(document.lineAt(line).text, character);
  }
}

export function mode(): Mode {
  return setting<boolean>("enable") === false ? "off" : (setting<Mode>("nextEdit") ?? "quiet");
}

/** Whether the editor has one cursor and no selection. */
export function alone({ selection, selections }: TextEditor): boolean {
  return selections.length === 1 && selection.isEmpty;
}

/** Whether edits come without a command. */
function automatic(): boolean {
  return mode() === "quiet" || mode() === "eager";
}
