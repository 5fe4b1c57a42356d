import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join, relative } from "node:path";
import { test } from "node:test";

import { choose, parse, usualPath, which } from "../src/python.ts";

const python = (minor: number, path = `/usr/bin/python3.${minor}`) => ({ version: [3, minor] as const, path });

test("the first Python that is new enough and not too new", () => {
  assert.deepEqual(choose([python(9), python(15), python(12), python(11)]), python(12));
});

test("where none fits, the sentence says what is needed and what there is", () => {
  const said = choose([python(9), python(15)]);
  assert.equal(
    said,
    "Caesura needs Python 3.11 to 3.14 and found only 3.9 (/usr/bin/python3.9), 3.15 (/usr/bin/python3.15). " +
      "Install one and try again.",
  );
  assert.match(String(choose([])), /found none on PATH/);
});

test("what a Python says of itself", () => {
  assert.deepEqual(parse("3 12 /opt/with space/python\n"), python(12, "/opt/with space/python"));
  assert.equal(parse("Python was not found; run without arguments to install"), undefined);
});

test("a program in ~/.local/bin is found where PATH has none, and only there", async () => {
  if (process.platform === "win32") return;
  const home = mkdtempSync(join(tmpdir(), "home-"));
  const folders = [join(home, "first"), join(home, ".local", "bin")];
  try {
    for (const folder of folders) {
      mkdirSync(folder, { recursive: true });
      writeFileSync(join(folder, "caesura"), "", { mode: 0o755 });
    }
    assert.equal(await which("caesura", usualPath("/nowhere", home)), join(home, ".local", "bin", "caesura"));
    assert.equal(await which("caesura", usualPath(folders[0], home)), join(home, "first", "caesura"));
  } finally {
    rmSync(home, { recursive: true });
  }
});

test("a program is looked for in PATH, but never beside the files that are open", async () => {
  const folder = mkdtempSync(join(tmpdir(), "which-"));
  const program = join(folder, process.platform === "win32" ? "caesura.exe" : "caesura");
  try {
    writeFileSync(program, "");
    chmodSync(program, 0o644);
    if (process.platform !== "win32") assert.equal(await which("caesura", folder), undefined);
    chmodSync(program, 0o755);
    assert.equal(await which("caesura", ["", "/nowhere", folder].join(delimiter)), program);
    assert.equal(await which("caesura", relative(process.cwd(), folder)), undefined);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
