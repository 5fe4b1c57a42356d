/** The environments in the extension's storage: each in a folder of its own, as one cannot be moved; in it, once it
 * works, a file with the version that it was made by. Other windows use them too. No VS Code here. */

import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

const NAME = /^environment(?:-(\d+))?$/; // by when it was begun; `environment` itself is older than all of them
const MARKER = "caesura-version";
const MAKING_MS = 3_600_000; // what is younger may be in the making
const KEPT = 2; // the newest that work: what was running at the last update goes on from the one before

export interface Installed {
  folder: string;
  version: string;
}

/** A folder for a new one. */
export function fresh(storage: string, now = Date.now()): string {
  return join(storage, `environment-${now}`);
}

/** Say that it works. */
export async function mark({ folder, version }: Installed): Promise<void> {
  await writeFile(join(folder, MARKER), `${version}\n`);
}

/** The newest that works. */
export async function installed(storage: string): Promise<Installed | undefined> {
  for (const { folder } of await all(storage)) {
    const version = await versionOf(folder);
    if (version) return { folder, version };
  }
  return undefined;
}

/** Remove what no window can need: older ones than the newest two that work, and what was never finished. */
export async function prune(storage: string, now = Date.now()): Promise<void> {
  let working = 0;
  for (const { folder, made } of await all(storage)) {
    const kept = (await versionOf(folder)) ? ++working <= KEPT : now - made < MAKING_MS;
    if (!kept) await remove(folder);
  }
}

/** As far as it can be: another window may be at it too, and a later `prune` comes back to it. */
export async function remove(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true }).catch(() => undefined);
}

export function programIn(folder: string, name: "caesura" | "python"): string {
  return process.platform === "win32" ? join(folder, "Scripts", `${name}.exe`) : join(folder, "bin", name);
}

/** The version that an environment was made by; empty until it works. */
async function versionOf(folder: string): Promise<string> {
  return (await readFile(join(folder, MARKER), "utf8").catch(() => "")).trim();
}

/** The newest first; `made`: when it was begun. */
async function all(storage: string): Promise<{ folder: string; made: number }[]> {
  const names = (await readdir(storage).catch(() => [])).filter((name) => NAME.test(name));
  const found = names.map((name) => ({ folder: join(storage, name), made: Number(NAME.exec(name)?.[1] ?? 0) }));
  return found.sort((one, other) => other.made - one.made);
}
