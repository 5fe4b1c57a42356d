/** Which Python can run Caesura. No VS Code here. */

import { execFile } from "node:child_process";
import { access, constants } from "node:fs/promises";
import { homedir } from "node:os";
import { delimiter, isAbsolute, join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

const MINORS = [14, 13, 12, 11]; // of Python 3, the best first
const TIMEOUT_MS = 10_000;
const TOLD = "import sys; print(*sys.version_info[:2], sys.executable)";

export interface Python {
  version: readonly [number, number];
  path: string;
}

/** A program's path, or undefined. Relative entries of PATH are skipped: they would run what a workspace holds. */
export async function which(name: string, path = process.env["PATH"] ?? ""): Promise<string | undefined> {
  const file = process.platform === "win32" ? `${name}.exe` : name;
  for (const folder of path.split(delimiter).filter(isAbsolute)) {
    const found = join(folder, file);
    if (await executable(found)) return found;
  }
  return undefined;
}

/** PATH and behind it where README has `caesura` linked: a desktop starts editors with another PATH than a terminal's. */
export function usualPath(path = process.env["PATH"] ?? "", home = homedir()): string {
  return [path, join(home, ".local", "bin")].join(delimiter);
}

export async function executable(path: string): Promise<boolean> {
  try {
    await access(path, process.platform === "win32" ? constants.F_OK : constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

export function supported({ version: [major, minor] }: Python): boolean {
  return major === 3 && MINORS.includes(minor);
}

/** The first supported one, or a sentence that says why there is none. */
export function choose(found: readonly Python[]): Python | string {
  const good = found.find(supported);
  if (good) return good;
  const range = `Python 3.${Math.min(...MINORS)} to 3.${Math.max(...MINORS)}`;
  const others = found.map(({ version, path }) => `${version.join(".")} (${path})`);
  const had = others.length ? `found only ${others.join(", ")}` : "found none on PATH";
  return `Caesura needs ${range} and ${had}. Install one and try again.`;
}

/** What a Python says of itself; undefined for what does not. */
export function parse(said: string): Python | undefined {
  const match = /^(\d+) (\d+) (.+)$/m.exec(said.trim());
  return match ? { version: [Number(match[1]), Number(match[2])], path: String(match[3]).trim() } : undefined;
}

/** All Pythons on PATH by their usual names. */
export async function pythons(): Promise<Python[]> {
  const names = ["python3", "python", ...MINORS.map((minor) => `python3.${minor}`)];
  const found = new Map<string, Python>();
  for (const name of names) {
    const path = await which(name);
    const python = path && (await ask(path));
    if (python) found.set(python.path, python);
  }
  return [...found.values()];
}

async function ask(path: string): Promise<Python | undefined> {
  try {
    return parse((await run(path, ["-I", "-c", TOLD], { timeout: TIMEOUT_MS })).stdout);
  } catch {
    return undefined; // a name without a Python behind it, as Windows has them
  }
}
