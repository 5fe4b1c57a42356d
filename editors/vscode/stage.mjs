// Before packaging: what the package holds of the rest of the repository. With --wheel, the Python package too.
import { execFileSync } from "node:child_process";
import { copyFileSync, readdirSync, rmSync } from "node:fs";

const REPOSITORY = "../..";
const PICTURES = `${REPOSITORY}/docs/pictures`;

copyFileSync(`${REPOSITORY}/LICENSE`, "LICENSE");
for (const name of readdirSync(PICTURES).filter((name) => /^vscode-.*\.png$/.test(name))) {
  copyFileSync(`${PICTURES}/${name}`, `media/${name}`);
}
rmSync("wheel", { recursive: true, force: true });
if (process.argv.includes("--wheel")) {
  const pip = ["-m", "pip", "wheel", "--no-deps", "--wheel-dir", "wheel", REPOSITORY];
  execFileSync("python3", pip, { stdio: "inherit" });
}
