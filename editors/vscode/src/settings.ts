/** The settings: which are the server's, and which are ours. */

import { type ConfigurationScope, ConfigurationTarget, workspace } from "vscode";

const OURS = new Set(["command", "install", "streaming", "trace"]);

export type Streaming = "off" | "lines";

export function setting<T>(name: string, scope?: ConfigurationScope): T | undefined {
  return workspace.getConfiguration("caesura", scope).get<T>(name);
}

/** What the server is told. It has no other way to know whether the workspace is trusted. */
export function forServer(all: Record<string, unknown> = read()): Record<string, unknown> {
  const theirs = Object.entries(all).filter(([name]) => !OURS.has(name));
  return { ...Object.fromEntries(theirs), trusted: workspace.isTrusted };
}

/** Change a setting where it is set: in the workspace if it has a value there, else for the user. */
export async function change(name: string, value: unknown): Promise<void> {
  const settings = workspace.getConfiguration("caesura");
  const here = settings.inspect(name)?.workspaceValue !== undefined;
  await settings.update(name, value, here ? ConfigurationTarget.Workspace : ConfigurationTarget.Global);
}

function read(): Record<string, unknown> {
  return JSON.parse(JSON.stringify(workspace.getConfiguration("caesura"))) as Record<string, unknown>;
}
