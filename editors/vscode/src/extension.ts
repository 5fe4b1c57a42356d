/** Caesura for VS Code: starts the language server, and wires its parts to VS Code. */

import { type ExtensionContext, type TextEditor, commands, window, workspace } from "vscode";

import { Completion } from "./completion.ts";
import { doctor } from "./doctor.ts";
import { create, toInstall, updateWanted, wanted } from "./environment.ts";
import { Fills, say } from "./fills.ts";
import { prune } from "./installed.ts";
import { menu } from "./menu.ts";
import { NextEdit } from "./nextEdit/nextEdit.ts";
import { Preview } from "./preview.ts";
import { Rest } from "./rest.ts";
import { Server, findProgram } from "./server.ts";
import { change, setting } from "./settings.ts";
import { type Condition, type State, Status } from "./status.ts";
import { why } from "./why.ts";

const RESTART = ["caesura.command", "caesura.model", "caesura.device"]; // settings that count when the server starts
const WITHOUT_SERVER: State[] = ["missing", "installing", "stopped"];

export async function activate(context: ExtensionContext): Promise<void> {
  const log = window.createOutputChannel("Caesura", { log: true });
  const status = new Status();
  const told = (condition: Condition) => {
    status.set(condition);
    void commands.executeCommand("setContext", "caesura.running", !WITHOUT_SERVER.includes(condition.state));
  };
  const client = () => server.client;
  const completion = new Completion(client, (ms) => status.took(ms));
  const server = new Server(log, completion, told);
  const fills = new Fills(client);
  const preview = new Preview(client, fills);
  const nextEdit = new NextEdit(client, () => completion.occupied);

  const start = async () => {
    const program = await findProgram(context);
    await server.start(program);
    return program !== undefined;
  };
  const install = async () => {
    if (!server.client) told({ state: "installing" });
    await create(context, log);
    await start();
  };
  const update = async () => {
    if (await updateWanted(context)) await install();
  };
  const setUp = async (asked: boolean) => {
    if (await wanted(context, asked)) await install();
  };
  const editing = (work: (editor: TextEditor) => Promise<void>) => async () => {
    if (!window.activeTextEditor) return say("Put the cursor into a document first.");
    await work(window.activeTextEditor);
  };
  const toggleLanguage = async () => {
    const { language, offHere } = status;
    if (language) await change("languages", { ...setting<object>("languages"), [language]: offHere });
  };

  const handlers: Record<string, () => unknown> = {
    infillSelection: editing((editor) => fills.selection(editor)),
    infillHoles: editing((editor) => fills.holes(editor)),
    repairSyntax: editing((editor) => fills.repair(editor)),
    anotherFill: editing((editor) => fills.another(editor)),
    editHere: editing((editor) => preview.edit(editor)),
    applyProposal: () => preview.apply(),
    discardProposal: () => preview.discard(),
    dismiss: () => completion.dismiss(),
    "nextEdit.take": () => nextEdit.take(),
    "nextEdit.dismiss": () => nextEdit.dismiss(),
    "nextEdit.next": () => nextEdit.next(),
    toggle: () => change("enable", setting("enable") === false),
    toggleLanguage,
    restart: start,
    showStatus: async () => menu(status, (await toInstall(context)).length > 0),
    whyNoSuggestion: editing((editor) => why(client(), editor)),
    openLog: () => log.show(),
    openSettings: () => commands.executeCommand("workbench.action.openSettings", "@ext:caesura.caesura"),
    runDoctor: async () => {
      const program = await findProgram(context);
      await (program ? doctor(program, log) : setUp(true));
    },
    createEnvironment: () => setUp(true),
  };
  for (const [name, handler] of Object.entries(handlers)) {
    context.subscriptions.push(commands.registerCommand(`caesura.${name}`, handler));
  }
  context.subscriptions.push(
    log,
    status,
    completion,
    preview,
    nextEdit,
    new Rest(client),
    server,
    workspace.onDidGrantWorkspaceTrust(() => server.configure()),
    workspace.onDidChangeConfiguration(async (event) => {
      if (RESTART.some((name) => event.affectsConfiguration(name))) await start();
    }),
  );
  if (!(await start())) void setUp(false);
  else void update();
  void prune(context.globalStorageUri.fsPath);
}
