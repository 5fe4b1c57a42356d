/** Structured edits: the server's offers for a place, and what one would change, side by side, before it is applied. */

import {
  type Disposable,
  EventEmitter,
  type TabInputTextDiff,
  type TextDocument,
  type TextDocumentContentProvider,
  type TextEdit,
  type TextEditor,
  Uri,
  WorkspaceEdit,
  commands,
  window,
  workspace,
} from "vscode";
import {
  type CodeAction,
  CodeActionKind,
  type CodeActionParams,
  CodeActionRequest,
  CodeActionTriggerKind,
  type LanguageClient,
} from "vscode-languageclient/node";

import { type Answer, type Fills, NOT_RUNNING, type Order, say } from "./fills.ts";

const SCHEME = "caesura-proposal";
const EDIT = "caesura.edit";
const SHOWN = "caesura.proposal"; // a context: the comparison is in front
const CHANGED = "The text has changed since this was proposed; ask again.";
const SURE = { valid: "valid form, guessed values", checked: "checked against the schema", parses: "parses" };

interface Proposal {
  document: TextDocument;
  version: number;
  edits: TextEdit[];
  text: string;
}

export class Preview implements TextDocumentContentProvider, Disposable {
  private readonly proposals = new Map<string, Proposal>(); // by the uri of the right side
  private readonly changed = new EventEmitter<Uri>();
  private readonly listeners: Disposable[];
  readonly onDidChange = this.changed.event;

  constructor(
    private readonly client: () => LanguageClient | undefined,
    private readonly fills: Fills,
  ) {
    this.listeners = [
      workspace.registerTextDocumentContentProvider(SCHEME, this),
      workspace.onDidCloseTextDocument(({ uri }) => this.proposals.delete(uri.toString())),
      window.tabGroups.onDidChangeTabs(() => commands.executeCommand("setContext", SHOWN, this.shown() !== undefined)),
      this.changed,
    ];
  }

  provideTextDocumentContent(uri: Uri): string {
    return this.proposals.get(uri.toString())?.text ?? "";
  }

  /** Ask for the offers of the cursor or the selection, let the user choose, and show what would change. */
  async edit(editor: TextEditor): Promise<void> {
    const order = this.fills.order(editor, { cursor: true });
    if (!order) return say(NOT_RUNNING);
    const { document } = editor;
    const titles = await this.offers(order);
    if (!titles.length) {
      return say("There is nothing to edit here: put the cursor into JSON, a Markdown table, a list, YAML or TOML.");
    }
    const chosen = titles.length > 1 ? await window.showQuickPick(titles, { title: "Caesura: edit here" }) : titles[0];
    if (!chosen) return;
    const answer = await this.fills.run(chosen, EDIT, { ...order, offer: chosen, preview: true });
    if (answer?.edit) await this.show(document, order.version, chosen, answer);
  }

  /** Put the proposal into the document, if that is still the one it was made for. */
  async apply(): Promise<void> {
    const tab = this.shown();
    const proposal = tab && this.proposals.get(tab.modified.toString());
    if (!proposal) return;
    const { document, version, edits } = proposal;
    await this.discard();
    if (document.version !== version) return say(CHANGED);
    const edit = new WorkspaceEdit();
    edit.set(document.uri, edits);
    await workspace.applyEdit(edit);
    await window.showTextDocument(document);
  }

  /** Close the comparison. */
  async discard(): Promise<void> {
    const shown = this.shown();
    const tabs = window.tabGroups.all.flatMap((group) => group.tabs);
    const found = tabs.filter((tab) => shown !== undefined && tab.input === shown);
    await window.tabGroups.close(found);
  }

  dispose(): void {
    for (const listener of this.listeners) listener.dispose();
  }

  private async offers({ uri, ranges: [range] }: Order): Promise<string[]> {
    const client = this.client();
    if (!client || !range) return [];
    const only = [CodeActionKind.RefactorRewrite];
    const context = { diagnostics: [], only, triggerKind: CodeActionTriggerKind.Invoked };
    const params: CodeActionParams = { textDocument: { uri }, range, context };
    const actions = (await client.sendRequest(CodeActionRequest.type, params)) ?? [];
    return actions.filter((action) => commandOf(action as CodeAction) === EDIT).map((action) => action.title);
  }

  private async show(document: TextDocument, version: number, title: string, answer: Answer): Promise<void> {
    const edits = await this.edits(document, answer);
    if (!edits) return;
    if (document.version !== version) return say(CHANGED);
    const right = document.uri.with({ scheme: SCHEME });
    this.proposals.set(right.toString(), { document, version, edits, text: edited(document, edits) });
    this.changed.fire(right);
    const sure = answer.level ? ` (${SURE[answer.level]})` : "";
    const name = document.uri.path.split("/").at(-1) ?? "";
    await commands.executeCommand("vscode.diff", document.uri, right, `${name}: ${title}${sure}`, { preview: true });
  }

  private async edits(document: TextDocument, { edit }: Answer): Promise<TextEdit[] | undefined> {
    const converted = edit && (await this.client()?.protocol2CodeConverter.asWorkspaceEdit(edit));
    return converted?.get(document.uri);
  }

  /** The comparison in front. */
  private shown(): TabInputTextDiff | undefined {
    const input = window.tabGroups.activeTabGroup.activeTab?.input as TabInputTextDiff | undefined;
    return input?.modified?.scheme === SCHEME ? input : undefined;
  }
}

/** The document's text with the edits in it. */
function edited(document: TextDocument, edits: TextEdit[]): string {
  let text = document.getText();
  for (const { range, newText } of [...edits].sort((a, b) => b.range.start.compareTo(a.range.start))) {
    text = text.slice(0, document.offsetAt(range.start)) + newText + text.slice(document.offsetAt(range.end));
  }
  return text;
}

/** The server's own word for what the action does, which it gives back when one is chosen. */
function commandOf({ data, command }: CodeAction): string | undefined {
  return (data as { command?: string } | undefined)?.command ?? command?.command;
}
