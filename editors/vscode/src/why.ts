/** "Why is there no suggestion?": the server's answer for the place of the cursor, after what VS Code decides itself. */

import { type TextEditor, workspace } from "vscode";
import { type ExecuteCommandParams, ExecuteCommandRequest, type LanguageClient } from "vscode-languageclient/node";

import { NOT_RUNNING, say } from "./fills.ts";

export async function why(client: LanguageClient | undefined, { document, selection }: TextEditor): Promise<void> {
  if (!client?.isRunning()) return say(NOT_RUNNING);
  if (workspace.getConfiguration("editor", document).get("inlineSuggest.enabled") === false) {
    return say("VS Code draws no suggestions: its setting 'editor.inlineSuggest.enabled' is off.");
  }
  const { asUri, asPosition } = client.code2ProtocolConverter;
  const place = { uri: asUri(document.uri), position: asPosition(selection.active) };
  const params: ExecuteCommandParams = { command: "caesura.why", arguments: [place] };
  const { message, text } = (await client.sendRequest(ExecuteCommandRequest.type, params)) as Answer;
  say(text ? `${message} It is: ${text}` : message);
}

interface Answer {
  message: string;
  text?: string;
}
