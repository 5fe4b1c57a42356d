/**
 * Ghost text. VS Code asks; the server streams what it has; the answer is given at the first whole line or word that is
 * ready. When more has become ready, the suggestion is drawn again: hidden and asked for again, answered from here.
 */

import {
  CancellationTokenSource,
  type CancellationToken,
  type Disposable,
  type InlineCompletionContext,
  InlineCompletionTriggerKind,
  type Position,
  type TextDocument,
  commands,
  window,
  workspace,
} from "vscode";
import type { InlineCompletionItem as Answered } from "vscode";
import {
  type InlineCompletionItem,
  type InlineCompletionList,
  type LanguageClient,
  type Middleware,
  ProgressType,
} from "vscode-languageclient/node";

import { announced } from "./announced.ts";
import { type Streaming, setting } from "./settings.ts";
import { Suggestion, type Value, wait } from "./stream.ts";

type Next = Parameters<NonNullable<Middleware["provideInlineCompletionItems"]>>[4];
type Result = Awaited<ReturnType<Next>>;

const VALUES = new ProgressType<Value>();
const GROWING = "caesura.growing"; // a context: what is shown may still grow

/** A cursor in a version of a document. */
class Place {
  readonly version: number;

  constructor(
    readonly document: TextDocument,
    readonly position: Position,
  ) {
    this.version = document.version;
  }

  at(document: TextDocument, position: Position): boolean {
    return document === this.document && document.version === this.version && position.isEqual(this.position);
  }

  /** Whether the user still is where this was asked for. */
  get current(): boolean {
    const editor = window.activeTextEditor;
    return editor !== undefined && editor.selection.isEmpty && this.at(editor.document, editor.selection.active);
  }
}

/** One streamed request and the place that it is for. */
class Live extends Place {
  readonly suggestion = new Suggestion();
  readonly stop = new CancellationTokenSource();
  settle!: () => void;
  readonly settled = new Promise<void>((resolve) => (this.settle = resolve));
}

export class Completion implements Disposable {
  private live: Live | undefined;
  private redrawing: Live | undefined;
  private taken: Place | undefined; // by a suggestion, or by an item selected in a popup
  private lastKey = 0;
  private timer: NodeJS.Timeout | undefined;
  private tokens = 0;
  private readonly listeners: Disposable[];

  /** `took` hears how many milliseconds each answer with text has needed. */
  constructor(
    private readonly client: () => LanguageClient | undefined,
    private readonly took: (ms: number) => void,
  ) {
    this.listeners = [
      workspace.onDidChangeTextDocument(({ document, contentChanges }) => {
        if (!contentChanges.length) return;
        this.lastKey = Date.now();
        if (document === this.live?.document) this.end();
      }),
      window.onDidChangeTextEditorSelection(() => this.endIfLeft()),
      window.onDidChangeActiveTextEditor(() => this.endIfLeft()),
    ];
  }

  /** The languageclient's middleware. */
  readonly provideInlineCompletionItems = async (
    document: TextDocument,
    position: Position,
    context: InlineCompletionContext,
    token: CancellationToken,
    next: Next,
  ): Promise<Result> => {
    if (this.redrawing?.at(document, position)) return this.give(this.redrawing);
    const began = Date.now();
    const place = new Place(document, position);
    this.taken = context.selectedCompletionInfo && place;
    const method = this.method(document, position, context);
    this.end();
    const result = method
      ? await this.stream(method, document, position, context, token)
      : await next(document, position, context, token);
    const items = Array.isArray(result) ? result : result?.items;
    if (items?.length && !token.isCancellationRequested) {
      this.taken = place;
      this.took(Date.now() - began);
    }
    return result;
  };

  /**
   * Whether a suggestion or a popup with a selected item stands at the cursor, as far as VS Code tells: what it asks and
   * what it is answered. It tells nothing of Esc, so a suggestion counts until the text changes or the cursor moves.
   */
  get occupied(): boolean {
    return this.taken?.current ?? false;
  }

  /** Hide what is shown, and do not bring it back when it has grown. */
  dismiss(): void {
    this.taken = undefined;
    this.end();
    void commands.executeCommand("editor.action.inlineSuggest.hide");
  }

  dispose(): void {
    this.end();
    for (const listener of this.listeners) listener.dispose();
  }

  /** The streaming request, where it is of use: not in a popup's item, and not for the candidates of what is done. */
  private method(document: TextDocument, position: Position, context: InlineCompletionContext): string | undefined {
    const done = this.live?.at(document, position) && this.live.suggestion.over;
    const again = done && context.triggerKind === InlineCompletionTriggerKind.Invoke;
    if (setting<Streaming>("streaming") === "off" || context.selectedCompletionInfo || again) return undefined;
    return announced(this.client()).stream;
  }

  private async stream(
    method: string,
    document: TextDocument,
    position: Position,
    context: InlineCompletionContext,
    token: CancellationToken,
  ): Promise<Answered[] | undefined> {
    const client = this.client();
    if (!client) return undefined;
    const live = (this.live = new Live(document, position));
    const cancelled = token.onCancellationRequested(() => live === this.live && this.end());
    const partialResultToken = `caesura-stream-${++this.tokens}`;
    const heard = client.onProgress(VALUES, partialResultToken, (value) => {
      live.suggestion.hear(value);
      this.news(live);
    });
    const params = client.code2ProtocolConverter.asInlineCompletionParams(document, position, context);
    void client
      .sendRequest<InlineCompletionItem[] | InlineCompletionList | null>(
        method,
        { ...params, partialResultToken },
        live.stop.token,
      )
      .then(
        (answer) => live.suggestion.end((Array.isArray(answer) ? answer : answer?.items) as Value["items"] | undefined),
        () => live.suggestion.end(undefined), // cancelled, or the server has ended: its own log says so
      )
      .finally(() => {
        heard.dispose();
        this.news(live);
      });
    await live.settled;
    cancelled.dispose();
    return live === this.live ? this.give(live) : undefined;
  }

  /** Something was said of `live`. */
  private news(live: Live): void {
    if (live !== this.live) return live.settle();
    if (live.suggestion.settled) live.settle();
    if (!live.suggestion.growing) void commands.executeCommand("setContext", GROWING, false);
    if (live.suggestion.stale && this.timer === undefined) {
      this.timer = setTimeout(() => this.redraw(live), wait(Date.now(), this.lastKey));
    }
  }

  /** Both at once in VS Code's own process: anything between the two would be frames without a suggestion. */
  private redraw(live: Live): void {
    this.timer = undefined;
    if (live !== this.live || !live.current || !live.suggestion.stale) return;
    this.redrawing = live;
    const both = ["editor.action.inlineSuggest.hide", "editor.action.inlineSuggest.trigger"];
    void commands.executeCommand("runCommands", { commands: both }).then(() => {
      if (this.redrawing === live) this.redrawing = undefined;
    });
  }

  private async give(live: Live): Promise<Answered[]> {
    const client = this.client();
    const items = live.suggestion.give();
    void commands.executeCommand("setContext", GROWING, live.suggestion.growing);
    return ((await client?.protocol2CodeConverter.asInlineCompletionResult(items)) ?? []) as Answered[];
  }

  private endIfLeft(): void {
    if (this.live && !this.live.current) this.end();
  }

  /** Nothing more is wanted of the live request. */
  private end(): void {
    const { live } = this;
    clearTimeout(this.timer);
    this.timer = undefined;
    this.live = this.redrawing = undefined;
    if (!live) return;
    if (!live.suggestion.over) live.stop.cancel();
    live.settle();
    void commands.executeCommand("setContext", GROWING, false);
  }
}
