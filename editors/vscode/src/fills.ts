/** The commands that fill: they ask the server, which applies its edit itself, as one step to undo. */

import { randomUUID } from "node:crypto";

import { type CancellationToken, CancellationTokenSource, ProgressLocation, type TextEditor, window } from "vscode";
import {
  type ExecuteCommandParams,
  ExecuteCommandRequest,
  type LanguageClient,
  type Range,
  type WorkspaceEdit,
  WorkDoneProgress,
} from "vscode-languageclient/node";

export const NOT_RUNNING = "Caesura's server is not running; a click on its status tells why.";
const SLOW_MS = 1200; // from then on there is a notification, with a button to cancel

/** The argument of the server's commands: docs/protocol.md. */
export interface Order {
  uri: string;
  version: number;
  ranges: Range[];
  offer?: string;
  preview?: boolean;
}

export interface Answer {
  applied: boolean;
  message?: string;
  level?: "valid" | "checked" | "parses";
  edit?: WorkspaceEdit;
}

export class Fills {
  constructor(private readonly client: () => LanguageClient | undefined) {}

  async selection(editor: TextEditor): Promise<void> {
    const order = this.order(editor);
    if (order && !order.ranges.length) return say("Select the text that is to be replaced first.");
    await this.run("Infill selection", "caesura.fillSelection", order);
  }

  /** In the selection, or in the whole document. */
  async holes(editor: TextEditor): Promise<void> {
    await this.run("Infill holes", "caesura.fillHoles", this.order(editor));
  }

  async repair(editor: TextEditor): Promise<void> {
    await this.run("Repair syntax", "caesura.repair", this.order(editor, { cursor: true }));
  }

  async another(editor: TextEditor): Promise<void> {
    const order = this.order(editor);
    await this.run("Another fill", "caesura.another", order && { ...order, ranges: [] });
  }

  /** What is selected in the editor; with `cursor`, where the cursors are, too. Undefined without a server. */
  order({ document, selections }: TextEditor, { cursor = false } = {}): Order | undefined {
    const client = this.client();
    if (!client?.isRunning()) return undefined;
    const converter = client.code2ProtocolConverter;
    const ranges = selections.filter((one) => cursor || !one.isEmpty).map((one) => converter.asRange(one));
    return { uri: converter.asUri(document.uri), version: document.version, ranges };
  }

  /** The server's answer; undefined where the user has been told why there is none. */
  async run(title: string, command: string, order: Order | undefined): Promise<Answer | undefined> {
    const client = this.client();
    if (!client?.isRunning() || !order) return say(NOT_RUNNING);
    const workDoneToken = randomUUID();
    const params: ExecuteCommandParams = { command, arguments: [order], workDoneToken };
    const answer = await withProgress(title, client, workDoneToken, async (token) => {
      try {
        return (await client.sendRequest(ExecuteCommandRequest.type, params, token)) as Answer;
      } catch (error) {
        const message = token.isCancellationRequested ? "" : "Caesura's server has not answered; its log says why.";
        if (message) client.error(message, error);
        return { applied: false, message };
      }
    });
    if (answer.message) void say(answer.message);
    return answer;
  }
}

/** In the status bar; what takes longer gets a button to cancel it. */
async function withProgress<T>(
  title: string,
  client: LanguageClient,
  id: string,
  work: (token: CancellationToken) => Promise<T>,
): Promise<T> {
  const cancel = new CancellationTokenSource();
  const doing = work(cancel.token);
  const slow = Symbol();
  const options = { location: ProgressLocation.Window, title: `Caesura: ${title}` };
  const first = await window.withProgress(options, () => Promise.race([doing, after(SLOW_MS, slow)]));
  if (first !== slow) return first as T;
  return window.withProgress(
    { ...options, location: ProgressLocation.Notification, cancellable: true },
    async (progress, token) => {
      token.onCancellationRequested(() => cancel.cancel());
      let known = 0;
      const heard = client.onProgress(WorkDoneProgress.type, id, (value) => {
        const percentage = value.kind === "report" ? (value.percentage ?? 0) : 0;
        if (percentage > known) progress.report({ increment: percentage - known });
        known = Math.max(known, percentage);
      });
      return doing.finally(() => heard.dispose());
    },
  );
}

function after<T>(ms: number, value: T): Promise<T> {
  return new Promise((resolve) => setTimeout(() => resolve(value), ms));
}

/** A sentence in answer to a command. */
export function say(message: string): undefined {
  void window.showInformationMessage(message);
}
