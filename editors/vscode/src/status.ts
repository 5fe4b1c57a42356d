/** The status bar item: what the engine does, and how fast it answers. A click opens the menu. */

import {
  type Disposable,
  MarkdownString,
  StatusBarAlignment,
  type StatusBarItem,
  ThemeColor,
  window,
  workspace,
} from "vscode";

import { setting } from "./settings.ts";

const LATENCIES = 200;

export type State = "missing" | "installing" | "stopped" | "connecting" | "loading" | "ready" | "unavailable" | "off";

/** The `caesura/status` of the server, and the states in which there is no server. */
export interface Condition {
  state: State;
  model?: string;
  device?: string;
  message?: string;
}

const LOOKS: Record<State, { icon: string; says: string; warns?: boolean }> = {
  missing: { icon: "cloud-download", says: "not set up", warns: true },
  installing: { icon: "loading~spin", says: "creating the environment" },
  stopped: { icon: "warning", says: "the language server has stopped", warns: true },
  connecting: { icon: "loading~spin", says: "starting the engine" },
  loading: { icon: "loading~spin", says: "loading the model" },
  ready: { icon: "whole-word", says: "ready" },
  unavailable: { icon: "warning", says: "no engine", warns: true },
  off: { icon: "circle-slash", says: "off" },
};

export class Status implements Disposable {
  condition: Condition = { state: "connecting" };
  private readonly item: StatusBarItem;
  private readonly listeners: Disposable[];
  private readonly latencies: number[] = [];

  constructor() {
    this.item = window.createStatusBarItem("caesura", StatusBarAlignment.Right, 100);
    this.item.name = "Caesura";
    this.item.command = "caesura.showStatus";
    this.listeners = [
      window.onDidChangeActiveTextEditor(() => this.draw()),
      workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("caesura") && this.draw()),
    ];
    this.draw();
    this.item.show();
  }

  set(condition: Condition): void {
    this.condition = condition;
    this.draw();
  }

  /** An answer took so long; only those with a text count. */
  took(ms: number): void {
    this.latencies.push(ms);
    if (this.latencies.length > LATENCIES) this.latencies.shift();
  }

  /** One sentence. */
  get sentence(): string {
    const { state, model, device, message } = this.condition;
    if (state === "ready" && this.offHere) return `Caesura: off for ${this.language}`;
    const on = state === "ready" && model ? ` (${model} on ${device})` : "";
    return `Caesura: ${LOOKS[state].says}${on}${message ? `. ${message}` : ""}`;
  }

  /** How long answers took; empty before the first. */
  get speed(): string {
    const sorted = [...this.latencies].sort((a, b) => a - b);
    if (!sorted.length) return "";
    const at = (part: number) => Math.round(sorted[Math.floor(part * (sorted.length - 1))] ?? 0);
    return `Answers with text: ${at(0.5)} ms (p50), ${at(0.95)} ms (p95), last ${sorted.length}`;
  }

  /** Of the active editor. */
  get language(): string | undefined {
    return window.activeTextEditor?.document.languageId;
  }

  /** Whether the settings exclude the language of the active editor. */
  get offHere(): boolean {
    const chosen = setting<Record<string, boolean>>("languages") ?? {};
    return this.language !== undefined && !(chosen[this.language] ?? chosen["*"] ?? true);
  }

  dispose(): void {
    this.item.dispose();
    for (const listener of this.listeners) listener.dispose();
  }

  private draw(): void {
    const { state } = this.condition;
    const look = LOOKS[state === "ready" && this.offHere ? "off" : state];
    this.item.text = `$(${look.icon}) Caesura`;
    this.item.backgroundColor = look.warns ? new ThemeColor("statusBarItem.warningBackground") : undefined;
    this.item.tooltip = new MarkdownString([this.sentence, this.speed].filter(Boolean).join("\n\n"));
    this.item.accessibilityInformation = { label: this.sentence };
  }
}
