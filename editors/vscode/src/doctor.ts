/** `caesura doctor`, with what it says in the log. */

import { execFile } from "node:child_process";
import { homedir } from "node:os";
import { promisify } from "node:util";

import { type LogOutputChannel, ProgressLocation, window } from "vscode";

const run = promisify(execFile);
const TIMEOUT_MS = 180_000;

export async function doctor(program: string, log: LogOutputChannel): Promise<void> {
  const options = { location: ProgressLocation.Window, title: "Caesura: doctor" };
  log.show(true);
  await window.withProgress(options, async () => {
    try {
      const { stdout } = await run(program, ["doctor"], { cwd: homedir(), timeout: TIMEOUT_MS });
      log.info(`caesura doctor\n${stdout}`);
    } catch (error) {
      const { stdout, stderr } = error as { stdout?: string; stderr?: string }; // it exits with 1 where it finds a trouble
      log.warn(`caesura doctor\n${stdout ?? ""}${stderr ?? String(error)}`);
    }
  });
}
