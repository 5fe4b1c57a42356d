"""VS Code as code-server shows it in Chromium: what the tests and the bench do in it and read from its screen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..audit import calls

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EXTENSION = Path(__file__).parents[2] / "editors" / "vscode"
WAIT_S = 120.0  # limits are reached only where something is wrong
START_S = 300.0
NOWHERE = "http://127.0.0.1:9/"  # nobody listens: no gallery is asked for anything

SETTINGS: Mapping[str, Any] = {
    "chat.disableAIFeatures": True,
    "editor.minimap.enabled": False,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "editor.suggestOnTriggerCharacters": False,
    "editor.cursorBlinking": "solid",
    "files.autoSave": "off",
    "git.enabled": False,
    "json.schemaDownload.enable": False,
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "update.mode": "none",
    "window.commandCenter": False,
    "workbench.editor.useModal": "off",
    "workbench.layoutControl.enabled": False,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
}

# What is on the screen. Ghost text is in the line itself (spans) and, further lines of it, in a block below it.
SCREEN = """() => {
  const editor = document.querySelector(".editor-group-container.active .editor-instance");
  if (!editor) return { lines: [], ghost: "" };
  const plain = (text) => text.replaceAll("\\u00a0", " ").replaceAll("\\u200b", "");
  const ghostly = (node) => node.closest("[class*=ghost-text]");
  const rows = [...editor.querySelectorAll(".view-lines > .view-line")];
  rows.sort((a, b) => parseInt(a.style.top) - parseInt(b.style.top));
  let inline = "";
  const lines = rows.map((row) => {
    let own = "";
    const walker = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (ghostly(node.parentElement)) inline += node.data;
      else own += node.data;
    }
    return plain(own);
  });
  const below = [...editor.querySelectorAll(".suggest-preview-text .view-line")].map((row) => plain(row.textContent));
  return { lines, ghost: [plain(inline), ...below].join("\\n").replace(/\\n+$/, "") };
}"""

# What decorations add to the lines, in the order of the screen.
ADDED = """() => {
  const spans = [...document.querySelectorAll(".editor-group-container.active .view-lines .view-line span span")];
  const found = spans.map((span) => [span.getBoundingClientRect(), getComputedStyle(span, "::after").content]);
  found.sort(([a], [b]) => a.top - b.top || a.left - b.left);
  const texts = found.map(([, content]) => content).filter((content) => content.startsWith('"'));
  return texts.map((content) => JSON.parse(content).replaceAll("\\u00a0", " "));
}"""

TOLD = ".notification-list-item:not(:has(.monaco-progress-container.active)) .notification-list-item-message"

# At each frame that the browser draws: when, what ghost text there is, and the lines.
RECORDED = """async () => {
  await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
  const found = window.frames_;
  window.frames_ = undefined;
  return found;
}"""
FRAMES = f"""() => {{
  const screen = {SCREEN};
  const frames = (window.frames_ = []);
  const look = (at) => {{
    if (frames !== window.frames_) return;
    const {{ ghost, lines }} = screen();
    frames.push([(performance.timeOrigin + at) / 1000, ghost, lines]);
    requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}}"""


@dataclass(frozen=True)
class Frame:
    """`at` is in seconds since the epoch."""

    at: float
    ghost: str
    lines: list[str]


class Code:
    """One window. `folder` is what it has open."""

    def __init__(self, page: Page, folder: Path, settings: Path) -> None:
        self.page, self.folder = page, folder
        self._settings, self._loaded = settings, settings.read_text()

    def started(self) -> None:
        """Wait until the extension has started, and have the editor alone on the screen."""
        wait(lambda: self.status, "the extension to start", START_S)
        if self.page.locator(".part.sidebar").is_visible():
            self.command("View: Toggle Primary Side Bar Visibility")

    # Hands

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str, pause_s: float = 0.12) -> None:
        for key in text:
            self.page.keyboard.type(key)
            time.sleep(pause_s)

    def command(self, title: str) -> None:
        """Run a command by its title, as the palette has it."""
        self.press("F1")
        self._pick(title, ">")

    def open(self, name: str, text: str, at: tuple[int, int] | None = None) -> None:
        """Make a file and open it; `at` is a line and a column, from 1."""
        (self.folder / name).write_text(text)
        self.press("Control+p")
        self._pick(name, f"{self.folder}/")  # by its path: the search for names is slow to know new files
        wait(lambda: self.active == name, f"{name} to be open")
        wait(lambda: bool(self.lines), f"the text of {name}")
        self.page.mouse.click(800, 450)  # else the palette may still have the keys
        self.press("Control+Home")
        if at:
            self.press(*["ArrowDown"] * (at[0] - 1), *["ArrowRight"] * (at[1] - 1))

    def _pick(self, text: str, before: str = "") -> None:
        box = self.page.locator(".quick-input-widget input[type=text]")
        box.wait_for(state="visible")
        box.fill(before + text)
        row = self.page.locator(
            f'.quick-input-list [aria-label="{text}"], .quick-input-list [aria-label^="{text}, "]'
        ).first
        row.wait_for(state="visible")
        rows = self.page.locator(".quick-input-list .monaco-list-row")
        before: list[str] = []
        while before != (before := rows.all_inner_texts()):  # the list is filtered once more
            time.sleep(0.3)
        row.click()

    def settings(self, plain: Mapping[str, object] | None = None, **ours: object) -> None:
        """The user's settings, `plain` ones and those of Caesura. The window loads anew: without its native parts,
        code-server does not see that a file has changed."""
        write_settings(self._settings, {**(plain or {}), **of_caesura(ours)})
        if self._loaded != (wanted := self._settings.read_text()):
            self.page.reload(timeout=START_S * 1000)
            self.started()
            self._loaded = wanted

    # Eyes

    def screen(self) -> dict[str, Any]:
        return self.page.evaluate(SCREEN)

    @property
    def lines(self) -> list[str]:
        return list(self.screen()["lines"])

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def ghost(self) -> str:
        return str(self.screen()["ghost"])

    @property
    def added(self) -> list[str]:
        """The texts that decorations draw next to that of the document."""
        return list(self.page.evaluate(ADDED))

    @property
    def active(self) -> str:
        """The name on the tab in front."""
        found = self.page.locator(".editor-group-container.active .tab.active")
        return str(found.first.get_attribute("data-resource-name")) if found.count() else ""

    @property
    def title(self) -> str:
        """What the tab in front is called."""
        found = self.page.locator(".editor-group-container.active .tab.active")
        return str(found.first.get_attribute("aria-label")) if found.count() else ""

    @property
    def status(self) -> str:
        """What the status bar item says to a screen reader."""
        found = self.page.locator("#caesura\\.caesura\\.caesura a, [id^='caesura.caesura'] a")
        return str(found.first.get_attribute("aria-label") or "") if found.count() else ""

    @property
    def notifications(self) -> list[str]:
        """What is told, in sentences; the title of a progress is none and tells nothing yet."""
        texts = [one.strip() for one in self.page.locator(TOLD).all_inner_texts()]
        return [text for text in texts if text.endswith(".")]

    def record(self) -> None:
        """Look at every frame from now on."""
        self.page.evaluate(FRAMES)

    def frames(self) -> list[Frame]:
        """The frames since `record`, and one that shows what stands there now."""
        return [Frame(*frame) for frame in self.page.evaluate(RECORDED)]

    def wait_for_ghost(self, expected: str) -> None:
        wait(lambda: self.ghost == expected, f"the ghost text {expected!r}")

    def wait_for_added(self, *expected: str) -> None:
        wait(lambda: self.added == list(expected), f"the texts {expected} of decorations")

    def picture(self, path: Path, clip: tuple[int, int, int, int] | None = None) -> None:
        box = dict(zip(("x", "y", "width", "height"), clip, strict=True)) if clip else None
        self.page.screenshot(path=path, clip=box)  # type: ignore[arg-type]


def wait(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.03)


def write_settings(path: Path, changed: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**SETTINGS, **changed}))


def of_caesura(settings: Mapping[str, object]) -> dict[str, object]:
    return {f"caesura.{name.replace('__', '.')}": value for name, value in settings.items()}


def build(folder: Path) -> Path:
    """The extension, packaged as for a user."""
    target = folder / "caesura.vsix"
    for command in (["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["npm", "run", "package"]):
        done = subprocess.run(command, cwd=EXTENSION, env=calls.unheard(), capture_output=True, text=True)
        assert not done.returncode, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    (EXTENSION / "caesura.vsix").replace(target)
    return target


class Server:
    """A running code-server with the extension in it."""

    def __init__(self, address: str, folder: Path, settings: Path) -> None:
        self.address, self.folder, self._settings = address, folder, settings

    @contextlib.contextmanager
    def window(self, browser: Browser, folder: Path, size: tuple[int, int] = (1000, 640)) -> Iterator[Code]:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.set_default_timeout(WAIT_S * 1000)
        try:
            page.goto(f"{self.address}/?folder={folder}", timeout=START_S * 1000)
            code = Code(page, folder, self._settings)
            page.wait_for_selector(".monaco-workbench", timeout=START_S * 1000)
            code.started()
            yield code
        finally:
            page.close()


@contextlib.contextmanager
def code_server(
    program: str, extension: Path, folder: Path, command: Path | None = None, *, trust: bool = False
) -> Iterator[Server]:
    """code-server with a home of its own in `folder`. `command` is the program of Caesura's server; `trust`: it asks
    whether a folder is trusted."""
    user, home = folder / "user", folder / "home"
    home.mkdir(parents=True)
    settings = user / "User" / "settings.json"
    write_settings(settings, {"security.workspace.trust.enabled": trust})
    if command:  # counts only among the settings of the machine
        machine = user / "Machine" / "settings.json"
        machine.parent.mkdir(parents=True)
        machine.write_text(json.dumps(of_caesura({"command": str(command)})))
    nowhere = {"serviceUrl": NOWHERE, "itemUrl": "", "resourceUrlTemplate": ""}
    scratch = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
    # The editor has a home of its own; what it starts keeps the engine and the records of the test.
    environment = {**os.environ, "HOME": str(home), "EXTENSIONS_GALLERY": json.dumps(nowhere), **scratch}
    common = [program, "--user-data-dir", str(user), "--extensions-dir", str(folder / "extensions")]
    common += ["--config", str(folder / "config.yaml")]
    subprocess.run([*common, "--install-extension", str(extension)], env=environment, check=True, capture_output=True)
    port = free_port()
    flags = ["--auth", "none", "--bind-addr", f"127.0.0.1:{port}", "--disable-telemetry", "--disable-update-check"]
    with (folder / "code-server.log").open("w") as log:
        process = subprocess.Popen([*common, *flags], env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait(lambda: listens(port), "code-server to listen", START_S)
        yield Server(f"http://127.0.0.1:{port}", folder, settings)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WAIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
