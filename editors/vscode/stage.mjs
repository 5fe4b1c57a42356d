// Before packaging: what the package holds of the rest of the repository. With --wheel, the Python package and
// its models too.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, readdirSync, rmSync } from "node:fs";

const REPOSITORY = "../..";
const PICTURES = `${REPOSITORY}/docs/pictures`;

copyFileSync(`${REPOSITORY}/LICENSE`, "LICENSE");
for (const name of readdirSync(PICTURES).filter((name) => /^vscode-.*\.png$/.test(name))) {
  copyFileSync(`${PICTURES}/${name}`, `media/${name}`);
}
rmSync("wheel", { recursive: true, force: true });
if (process.argv.includes("--wheel")) {
  const models = ["coder", "small"]
    .filter((name) => existsSync(`${REPOSITORY}/models/${name}/caesura_${name}/manifest.json`))
    .map((name) => `${REPOSITORY}/models/${name}`);
  const pip = ["-m", "pip", "wheel", "--no-deps", "--wheel-dir", "wheel", REPOSITORY, ...models];
  execFileSync("python3", pip, { stdio: "inherit" });
}
