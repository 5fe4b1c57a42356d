import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { fresh, installed, mark, prune, remove } from "../src/installed.ts";

async function inStorage(work: (storage: string) => Promise<void>): Promise<void> {
  const storage = mkdtempSync(join(tmpdir(), "storage-"));
  try {
    await work(storage);
  } finally {
    rmSync(storage, { recursive: true });
  }
}

function begin(storage: string, now: number): string {
  const folder = fresh(storage, now);
  mkdirSync(folder);
  return folder;
}

test("an environment counts once it works, and the old one until then", () =>
  inStorage(async (storage) => {
    assert.equal(await installed(storage), undefined);
    const old = begin(storage, 9);
    assert.equal(await installed(storage), undefined);
    await mark({ folder: old, version: "0.1.0" });
    const next = begin(storage, 10);
    assert.deepEqual(await installed(storage), { folder: old, version: "0.1.0" });
    await mark({ folder: next, version: "0.2.0" });
    assert.deepEqual(await installed(storage), { folder: next, version: "0.2.0" });
  }));

test("what other windows may run from or be making stays, what is older is removed", () =>
  inStorage(async (storage) => {
    const hour = 3_600_000;
    const begun = [1, 2, 3, 4, 5, 2 * hour];
    const working = [1, 2, 4];
    const folders = begun.map((now) => begin(storage, now));
    for (const at of working) await mark({ folder: fresh(storage, at), version: `0.${at}.0` });
    await prune(storage, 3 * hour - 1);
    assert.deepEqual(folders.map(existsSync), [false, true, false, true, false, true]);
    await prune(storage, 3 * hour);
    assert.deepEqual(folders.map(existsSync), [false, true, false, true, false, false]);
    assert.deepEqual(await installed(storage), { folder: fresh(storage, 4), version: "0.4.0" });
  }));

test("an environment of the first layout is removed, and nothing that is not ours", () =>
  inStorage(async (storage) => {
    const folders = ["environment", "environment-of-mine", "other"].map((name) => join(storage, name));
    for (const folder of folders) mkdirSync(folder);
    await prune(storage);
    assert.deepEqual(folders.map(existsSync), [false, true, true]);
  }));

test("a removal takes one folder, which another window may have removed already", () =>
  inStorage(async (storage) => {
    const [one, other] = [begin(storage, 1), begin(storage, 2)];
    await remove(one);
    await remove(one);
    assert.deepEqual([one, other].map(existsSync), [false, true]);
  }));

test("where there is no storage yet there is nothing", async () => {
  assert.equal(await installed("/nowhere/at/all"), undefined);
  await prune("/nowhere/at/all");
});
