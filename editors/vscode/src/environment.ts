/** A Python environment of our own, made when the user asks for it: `python -m venv`, then `pip install`. */

import { spawn } from "node:child_process";
import { homedir } from "node:os";
import { join } from "node:path";

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

import { choose, pythons } from "./python.ts";
import { ownEnvironment } from "./server.ts";
import { setting } from "./settings.ts";

const CREATE = "Create Environment";
const LOG = "Show Log";
const SETTINGS = "Open Settings";
const DECLINED = "declined"; // in the global state: the user does not want to be asked again

/** A sentence for the user. */
class Refused extends Error {}

/** Whether the user wants an environment, after being told what that takes. `asked`: by the user, who may have declined
 * an offer of ours before. */
export async function wanted(context: ExtensionContext, asked: boolean): Promise<boolean> {
  if (!asked && context.globalState.get<boolean>(DECLINED)) return false;
  const later = asked ? "Cancel" : "Not Now";
  const message =
    `Caesura runs a Python program. ${asked ? "" : "There is none in caesura.command or on PATH. "}It can install one ` +
    `for itself in ${ownEnvironment(context).fsPath}: pip downloads about 284 MB (1.3 GB on disk), or 2.8 GB where it ` +
    `takes torch with CUDA, as plain pip on x86-64 Linux does (see caesura.install.pipArguments).`;
  const answer = await window.showInformationMessage(message, CREATE, SETTINGS, later);
  if (answer === later) await context.globalState.update(DECLINED, !asked);
  if (answer === SETTINGS) await openSettings();
  return answer === CREATE;
}

/** Make it, with its output in the log. What goes wrong is told in one sentence. */
export async function create(context: ExtensionContext, log: LogOutputChannel): Promise<void> {
  const options = { location: ProgressLocation.Notification, title: "Caesura", cancellable: true };
  const folder = ownEnvironment(context);
  try {
    await window.withProgress(options, async (progress, token) => {
      const what = await toInstall(context);
      const python = choose(await pythons());
      if (typeof python === "string") throw new Refused(python);
      await workspace.fs.createDirectory(context.globalStorageUri);
      progress.report({ message: "creating the environment" });
      await execute(log, token, python.path, ["-m", "venv", "--clear", folder.fsPath]);
      progress.report({ message: "installing packages, which takes minutes" });
      const pip = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"];
      await execute(log, token, pythonOf(folder), [...pip, ...(setting<string[]>("install.pipArguments") ?? []), what]);
    });
  } catch (error) {
    await remove(folder);
    await tell(log, error);
  }
}

/** The wheel that came with the extension, else what the settings say. */
async function toInstall(context: ExtensionContext): Promise<string> {
  const wheels = Uri.joinPath(context.extensionUri, "wheel");
  const bundled = (await entries(wheels)).find((name) => name.endsWith(".whl"));
  if (bundled) return Uri.joinPath(wheels, bundled).fsPath;
  const chosen = setting<string>("install.package")?.trim();
  if (chosen) return chosen.replace(/^~(?=[/\\])/, homedir());
  throw new Refused(
    "This build of the extension does not carry the Python package. Set caesura.install.package to the path of a " +
      "clone of Caesura, or to what pip should install, and try again.",
  );
}

async function entries(folder: Uri): Promise<string[]> {
  try {
    return (await workspace.fs.readDirectory(folder)).map(([name]) => name);
  } catch {
    return [];
  }
}

function pythonOf(folder: Uri): string {
  return process.platform === "win32"
    ? join(folder.fsPath, "Scripts", "python.exe")
    : join(folder.fsPath, "bin", "python");
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
    if (code !== 0) throw new Refused(`The environment could not be made: ${last || `exit code ${code}`}`);
  } finally {
    stop.dispose();
  }
}

/** What is half made is of no use. */
async function remove(folder: Uri): Promise<void> {
  try {
    await workspace.fs.delete(folder, { recursive: true });
  } catch {
    // there is none
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
