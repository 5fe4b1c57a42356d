/** The language server: where its program is, and the client that runs it. */

import { homedir } from "node:os";

import { type Disposable, type ExtensionContext, type LogOutputChannel } from "vscode";
import {
  type ClientCapabilities,
  CloseAction,
  DidChangeConfigurationNotification,
  ErrorAction,
  type ErrorHandler,
  LanguageClient,
  type Middleware,
  RevealOutputChannelOn,
  State as ClientState,
} from "vscode-languageclient/node";

import { installed, programIn } from "./installed.ts";
import { executable, usualPath, which } from "./python.ts";
import { forServer, setting } from "./settings.ts";
import type { Condition } from "./status.ts";

export const SCHEMES = ["file", "untitled", "vscode-notebook-cell"];

/** Faults are told in the log and in the status bar, and nowhere else. */
class QuietClient extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

/** The `caesura` to run: the one of the settings, else ours, else the one on PATH, else the one in ~/.local/bin. */
export async function findProgram(context: ExtensionContext): Promise<string | undefined> {
  const chosen = setting<string>("command")?.trim();
  if (chosen) return chosen.replace(/^~(?=[/\\])/, homedir());
  const own = await installed(context.globalStorageUri.fsPath);
  const program = own && programIn(own.folder, "caesura");
  return program && (await executable(program)) ? program : which("caesura", usualPath());
}

export class Server implements Disposable {
  client: LanguageClient | undefined;
  private done: Promise<void> = Promise.resolve(); // what was asked for before

  constructor(
    private readonly log: LogOutputChannel,
    private readonly completion: Middleware,
    private readonly told: (condition: Condition) => void,
  ) {}

  /** Start `program`, if there is one, in the place of what runs. */
  start(program: string | undefined): Promise<void> {
    return this.afterwards(async () => {
      await this.halt();
      if (program === undefined) return this.told({ state: "missing" });
      if (!(await executable(program))) {
        const message = `There is no program ${program}; change the setting caesura.command`;
        this.log.error(message);
        this.told({ state: "stopped", message });
        return;
      }
      await this.run(program);
    });
  }

  stop(): Promise<void> {
    return this.afterwards(() => this.halt());
  }

  /** Have the server read its settings again. */
  async configure(): Promise<void> {
    if (this.client?.isRunning()) {
      await this.client.sendNotification(DidChangeConfigurationNotification.type, { settings: null });
    }
  }

  dispose(): Promise<void> {
    return this.stop();
  }

  /** One thing at a time. */
  private afterwards(work: () => Promise<void>): Promise<void> {
    return (this.done = this.done.then(work));
  }

  private async halt(): Promise<void> {
    const { client } = this;
    this.client = undefined;
    if (!client?.needsStop()) return;
    try {
      await client.start(); // one that is starting cannot be stopped
      await client.stop();
    } catch (error) {
      this.log.warn(String(error));
    }
  }

  private async run(program: string): Promise<void> {
    this.told({ state: "connecting" });
    const client = (this.client = new QuietClient(
      "caesura",
      "Caesura",
      { command: program, args: ["lsp"], options: { cwd: homedir() } }, // not in the workspace, whose files could be run
      {
        documentSelector: SCHEMES.map((scheme) => ({ scheme })),
        initializationOptions: () => forServer(),
        initializationFailedHandler: () => false,
        errorHandler: this.errorHandler(),
        middleware: this.middleware(),
        outputChannel: this.log,
        revealOutputChannelOn: RevealOutputChannelOn.Never,
      },
    ));
    client.registerFeature({
      fillClientCapabilities: (capabilities: ClientCapabilities) => {
        capabilities.experimental = { ...(capabilities.experimental as object), caesura: { status: true } };
      },
      initialize: () => undefined,
      getState: () => ({ kind: "static" }),
      clear: () => undefined,
    });
    client.onNotification("caesura/status", (condition: Condition) => this.told(condition));
    client.onNotification("didChangeStatus", () => undefined); // Copilot's form of the same
    client.onDidChangeState(({ newState }) => {
      if (client !== this.client) return;
      if (newState === ClientState.Starting) this.told({ state: "connecting" });
      if (newState === ClientState.Stopped) this.told({ state: "stopped", message: "The log says why" });
    });
    await client.start().catch((error: unknown) => {
      this.log.error(String(error));
      this.told({ state: "stopped", message: "The log says why" });
    });
  }

  /** The languageclient's own policy, four restarts in three minutes, without its dialog. */
  private errorHandler(): ErrorHandler {
    let policy: ErrorHandler | undefined;
    const theirs = () => (policy ??= this.client?.createDefaultErrorHandler());
    return {
      error: async (error, message, count) =>
        (await theirs()?.error(error, message, count)) ?? { action: ErrorAction.Continue },
      closed: async () => ({ ...((await theirs()?.closed()) ?? { action: CloseAction.DoNotRestart }), handled: true }),
    };
  }

  private middleware(): Middleware {
    return {
      ...this.completion,
      workspace: {
        configuration: async (params, token, next) => {
          const found = await next(params, token);
          if (!Array.isArray(found)) return found;
          return params.items.map(({ section }, i) => (section === "caesura" ? forServer(found[i]) : found[i]));
        },
        didChangeConfiguration: () => this.configure(),
      },
    };
  }
}
