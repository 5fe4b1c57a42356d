/** A Python environment of our own, made when the user asks for it: `python -m venv`, then `pip install`. */

import { spawn } from "node:child_process";
import { homedir } from "node:os";

import {
  type CancellationToken,
  type ExtensionContext,
  type LogOutputChannel,
  ProgressLocation,
  Uri,
  commands,
  window,
  workspace,
} from "vscode";

import { fresh, installed, mark, programIn, remove } from "./installed.ts";
import { choose, pythons } from "./python.ts";
import { setting } from "./settings.ts";

const CREATE = "Create Environment";
const UPDATE = "Update Environment";
const LOG = "Show Log";
const SETTINGS = "Open Settings";
const DECLINED = "declined"; // in the global state: the user does not want to be asked again
const ASKED = "updateAskedFor"; // there too: the version of the extension that has asked for an update
const NOTHING =
  "This build of the extension carries no Python package to install. Set caesura.command to the program, or " +
  "caesura.install.package to the path of a clone of Caesura, or to what pip should install.";

const FAILED =
  "The environment could not be made. The log has all that Python and pip said; mend that, or change " +
  'caesura.install.pipArguments, and run "Caesura: Create Environment..." again.';

/** A sentence for the user. */
class Refused extends Error {}

/** Whether the user wants an environment, after being told what that takes. `asked`: by the user, who may have declined
 * an offer of ours before. */
export async function wanted(context: ExtensionContext, asked: boolean): Promise<boolean> {
  if (!asked && context.globalState.get<boolean>(DECLINED)) return false;
  const later = asked ? "Cancel" : "Not Now";
  const none = asked ? "" : "There is none in caesura.command, on PATH or in ~/.local/bin. ";
  if ((await toInstall(context)).length === 0) {
    const answer = await window.showWarningMessage(`Caesura runs a Python program. ${none}${NOTHING}`, SETTINGS, later);
    if (answer === later) await context.globalState.update(DECLINED, !asked);
    if (answer === SETTINGS) await openSettings();
    return false;
  }
  const message =
    `Caesura runs a Python program. ${none}It can install one ` +
    `for itself in ${context.globalStorageUri.fsPath}: pip downloads about 40 MB (0.5 GB on disk with the model).`;
  const answer = await window.showInformationMessage(message, CREATE, SETTINGS, later);
  if (answer === later) await context.globalState.update(DECLINED, !asked);
  if (answer === SETTINGS) await openSettings();
  return answer === CREATE;
}

/** Whether the user wants an environment of an older version of the extension made anew; asked once a version. */
export async function updateWanted(context: ExtensionContext): Promise<boolean> {
  const version = versionOf(context);
  const own = await installed(context.globalStorageUri.fsPath);
  if (!own || own.version === version || context.globalState.get<string>(ASKED) === version) return false;
  if (setting<string>("command")?.trim() || (await toInstall(context)).length === 0) return false;
  await context.globalState.update(ASKED, version);
  const message =
    `Caesura's environment is of version ${own.version}, the extension of ${version}. The new one is made beside it, ` +
    "with what pip has to download again; the old one stays for what runs from it, until the next update.";
  return (await window.showInformationMessage(message, UPDATE, "Not Now")) === UPDATE;
}

/** Make it, with its output in the log. What goes wrong is told in one sentence, and leaves what there was. */
export async function create(context: ExtensionContext, log: LogOutputChannel): Promise<void> {
  const options = { location: ProgressLocation.Notification, title: "Caesura", cancellable: true };
  const folder = fresh(context.globalStorageUri.fsPath);
  try {
    await window.withProgress(options, async (progress, token) => {
      const what = await toInstall(context);
      if (what.length === 0) throw new Refused(NOTHING);
      const python = choose(await pythons());
      if (typeof python === "string") throw new Refused(python);
      await workspace.fs.createDirectory(context.globalStorageUri);
      progress.report({ message: "creating the environment" });
      await execute(log, token, python.path, ["-m", "venv", folder]);
      progress.report({ message: "installing packages, which takes minutes" });
      const pip = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"];
      const own = setting<string[]>("install.pipArguments") ?? [];
      await execute(log, token, programIn(folder, "python"), [...pip, ...own, ...what]);
      await execute(log, token, programIn(folder, "caesura"), ["--version"]);
      await mark({ folder, version: versionOf(context) });
    });
  } catch (error) {
    await remove(folder);
    await tell(log, error);
  }
}

function versionOf(context: ExtensionContext): string {
  return String((context.extension.packageJSON as { version?: unknown }).version);
}

/** The wheels that came with the extension, else what the settings say with the models of that clone, else nothing. */
export async function toInstall(context: ExtensionContext): Promise<string[]> {
  const wheels = Uri.joinPath(context.extensionUri, "wheel");
  const bundled = (await entries(wheels)).filter((name) => name.endsWith(".whl"));
  if (bundled.length > 0) return bundled.map((name) => Uri.joinPath(wheels, name).fsPath);
  const chosen = setting<string>("install.package")?.trim().replace(/^~(?=[/\\])/, homedir());
  return chosen ? [chosen, ...(await models(chosen))] : [];
}

/** The distributions of weights in a clone, without those whose weights are not there. */
async function models(clone: string): Promise<string[]> {
  const folder = Uri.joinPath(Uri.file(clone), "models");
  const found: string[] = [];
  for (const name of await entries(folder)) {
    const inside = await entries(Uri.joinPath(folder, name, `caesura_${name}`));
    if (inside.includes("manifest.json")) found.push(Uri.joinPath(folder, name).fsPath);
  }
  return found;
}

async function entries(folder: Uri): Promise<string[]> {
  try {
    return (await workspace.fs.readDirectory(folder)).map(([name]) => name);
  } catch {
    return [];
  }
}

/** Run a program to its end, with its output in the log. */
async function execute(log: LogOutputChannel, token: CancellationToken, program: string, args: string[]): Promise<void> {
  log.info([program, ...args].join(" "));
  if (token.isCancellationRequested) throw new Refused("");
  const child = spawn(program, args, { cwd: homedir(), stdio: ["ignore", "pipe", "pipe"] });
  const stop = token.onCancellationRequested(() => child.kill());
  let last = "";
  for (const output of [child.stdout, child.stderr]) {
    output.setEncoding("utf8").on("data", (text: string) => {
      const said = text.trimEnd();
      last = said.split("\n").at(-1) || last;
      if (said) log.info(said);
    });
  }
  try {
    const code = await new Promise<number | null>((resolve, reject) => child.on("error", reject).on("close", resolve));
    if (token.isCancellationRequested) throw new Refused("");
    if (code !== 0) throw new Refused(`${FAILED} It said last: ${last || `exit code ${code}`}`);
  } finally {
    stop.dispose();
  }
}

async function tell(log: LogOutputChannel, error: unknown): Promise<void> {
  const message = error instanceof Error ? error.message : String(error);
  if (!message) return; // cancelled
  log.error(message);
  const answer = await window.showErrorMessage(message, LOG, SETTINGS);
  if (answer === LOG) log.show();
  if (answer === SETTINGS) await openSettings();
}

async function openSettings(): Promise<void> {
  await commands.executeCommand("workbench.action.openSettings", "caesura.install");
}
