/** The messages of next edits: Copilot's, and one of our own. docs/protocol.md */

import type { CancellationToken, Position, TextDocument } from "vscode";
import { type Command, ExecuteCommandRequest, type LanguageClient, type Range } from "vscode-languageclient/node";

import { announced } from "../announced.ts";

const ASK = "textDocument/copilotInlineEdit";

export interface Edit {
  text: string;
  textDocument: { uri: string; version: number };
  range: Range;
  command: Command;
  why?: string;
}

type Told = "textDocument/didShowInlineEdit" | "caesura/didDismissInlineEdit";

/** Whether there is a server that answers. */
export function answers(client: LanguageClient | undefined): client is LanguageClient {
  return client !== undefined && client.isRunning() && announced(client).nextEdit === true;
}

/** The edit for this version of the document; `invoked`: the user asks for it. Undefined where there is none, or the server has failed or ended. */
export async function ask(
  client: LanguageClient,
  document: TextDocument,
  position: Position,
  invoked: boolean,
  token: CancellationToken,
): Promise<Edit | undefined> {
  const { version } = document;
  const params = client.code2ProtocolConverter.asTextDocumentPositionParams(document, position);
  const asked = { ...params, textDocument: { ...params.textDocument, version }, context: { triggerKind: invoked ? 1 : 2 } };
  const { uri } = params.textDocument;
  try {
    const answer = await client.sendRequest<{ edits: Edit[] } | null>(ASK, asked, token);
    const edit = answer?.edits[0];
    const fits = edit?.textDocument.uri === uri && edit.textDocument.version === version;
    return fits && document.version === version ? edit : undefined;
  } catch {
    return undefined; // cancelled, or a failure that the server's log has
  }
}

/** Report that the edit is drawn, or that the user has dismissed it. */
export function tell(client: LanguageClient | undefined, what: Told, { command }: Edit): void {
  send(client, what, { item: { command: { arguments: command.arguments ?? [] } } });
}

export function tellFocus(client: LanguageClient | undefined, document: TextDocument | undefined): void {
  const textDocument = document && client?.code2ProtocolConverter.asTextDocumentIdentifier(document);
  send(client, "textDocument/didFocus", textDocument ? { textDocument } : {});
}

/** Report that the edit is in the text. */
export async function tellTaken(client: LanguageClient | undefined, { command }: Edit): Promise<void> {
  if (!answers(client)) return;
  const params = { command: command.command, arguments: command.arguments ?? [] };
  await client.sendRequest(ExecuteCommandRequest.type, params).catch(() => undefined); // the server's log says so
}

function send(client: LanguageClient | undefined, method: string, params: object): void {
  if (answers(client)) void client.sendNotification(method, params).catch(() => undefined); // the server has ended
}
