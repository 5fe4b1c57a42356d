/** Where the cursor comes to rest, told to the server: it has the engine read what lies around before the first key. */

import { Disposable, type TextEditor, window, workspace } from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";

import { announced } from "./announced.ts";

const RESTS_MS = 150;
const TYPED_MS = 50; // a key moves the cursor too, and its edit says more

export class Rest implements Disposable {
  private timer: NodeJS.Timeout | undefined;
  private typed = 0;
  private readonly listeners: Disposable;

  constructor(private readonly client: () => LanguageClient | undefined) {
    this.listeners = Disposable.from(
      workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
        if (!contentChanges.length || document !== window.activeTextEditor?.document) return;
        this.typed = Date.now();
        clearTimeout(this.timer);
      }),
      window.onDidChangeTextEditorSelection(({ textEditor }) => this.moved(textEditor)),
      window.onDidChangeActiveTextEditor((editor) => editor && this.moved(editor)),
    );
  }

  private moved(editor: TextEditor): void {
    if (editor !== window.activeTextEditor) return;
    clearTimeout(this.timer);
    if (Date.now() - this.typed > TYPED_MS) this.timer = setTimeout(() => this.tell(editor), RESTS_MS);
  }

  private tell(editor: TextEditor): void {
    const client = this.client();
    const method = announced(client).cursor;
    if (!client?.isRunning() || !method || editor !== window.activeTextEditor || !editor.selection.isEmpty) return;
    const { document, selection } = editor;
    const where = client.code2ProtocolConverter.asTextDocumentPositionParams(document, selection.active);
    void client.sendNotification(method, where).catch(() => undefined); // the server has ended: its own log says so
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.listeners.dispose();
  }
}
