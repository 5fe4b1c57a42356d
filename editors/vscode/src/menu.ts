/** What a click on the status shows: how the engine is, and what can be done about it. */

import { type QuickPickItem, QuickPickItemKind, commands, window } from "vscode";

import { setting } from "./settings.ts";
import type { Status } from "./status.ts";

interface Choice extends QuickPickItem {
  command?: string;
}

/** `installable`: there is something to make an environment from. */
export async function menu(status: Status, installable: boolean): Promise<void> {
  const on = setting<boolean>("enable") !== false;
  const { state } = status.condition;
  const language = status.language;
  const choices: (Choice | false)[] = [
    { label: status.sentence, ...(status.speed && { detail: status.speed }), command: "caesura.openLog" },
    { label: "", kind: QuickPickItemKind.Separator },
    state === "missing" &&
      installable && { label: "$(cloud-download) Create environment...", command: "caesura.createEnvironment" },
    { label: `$(circle-slash) Turn ${on ? "off" : "on"}`, command: "caesura.toggle" },
    language !== undefined && {
      label: `$(circle-slash) Turn ${status.offHere ? "on" : "off"} for ${language}`,
      command: "caesura.toggleLanguage",
    },
    { label: "$(question) Why is there no suggestion?", command: "caesura.whyNoSuggestion" },
    { label: "$(debug-restart) Restart the language server", command: "caesura.restart" },
    { label: "$(pulse) Run doctor", command: "caesura.runDoctor" },
    { label: "$(output) Open log", command: "caesura.openLog" },
    { label: "$(gear) Settings", command: "caesura.openSettings" },
  ];
  const chosen = await window.showQuickPick(
    choices.filter((choice) => choice !== false),
    { title: "Caesura" },
  );
  if (chosen?.command) await commands.executeCommand(chosen.command);
}
