// Bundles Monaco for the page of `caesura demo`, compressed as it is served: `npm ci && npm run build`.
// The list of checksums lets a test see that the files are what this script built.
import { createHash } from "node:crypto";
import { copyFile, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const out = new URL("../../caesura/demo/page/monaco/", import.meta.url).pathname;
await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  entryPoints: { editor: "editor.js", worker: "monaco-editor/editor/editor.worker" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  loader: { ".ttf": "file" },
  assetNames: "[name]",
  legalComments: "none", // the licence lies beside the bundle
});
await copyFile("node_modules/monaco-editor/ThirdPartyNotices.txt", `${out}ThirdPartyNotices.txt`);
for (const name of await readdir(out)) {
  await writeFile(`${out}${name}.gz`, gzipSync(await readFile(out + name), { level: 9 }));
  await rm(out + name);
}
await copyFile("node_modules/monaco-editor/LICENSE", `${out}LICENSE`);

const sums = [];
for (const name of (await readdir(out)).sort()) {
  const data = await readFile(out + name);
  sums.push(`${createHash("sha256").update(data).digest("hex")}  ${name}`);
  console.log(`${String(data.length).padStart(8)}  ${name}`);
}
await writeFile("sha256sums", sums.join("\n") + "\n");
