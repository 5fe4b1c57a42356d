// Bundle the extension, or its tests, into dist/. The licences of what is bundled come with it.
import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { build } from "esbuild";

const testing = process.argv.includes("--test");
const tests = readdirSync("test").map((name) => join("test", name));

rmSync("dist", { recursive: true, force: true });
const { metafile } = await build({
  entryPoints: testing ? tests : ["src/extension.ts"],
  outdir: "dist",
  bundle: true,
  minify: !testing,
  platform: "node",
  target: "node20",
  format: "cjs",
  external: ["vscode"],
  metafile: true,
});
if (!testing) {
  const folders = Object.keys(metafile.inputs).map((input) => /^.*node_modules\/(@[^/]+\/)?[^/]+/.exec(input)?.[0]);
  const packages = [...new Set(folders.filter(Boolean))].sort();
  writeFileSync("dist/THIRD_PARTY.txt", packages.map(licence).join("\n\n"));
}

function licence(folder) {
  const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}`;
}
