"""`caesura demo` in Chromium with the shipped model: ghost text, both runs, the slider, and who is let in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from caesura.demo.app import examples
from caesura.engine.weights.stored import write_manifest
from caesura.model_store import locate

from .browser import chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.real

CAESURA = (sys.executable, "-P", "-m", "caesura")
READY_MS = 300_000  # limits are reached only where something is wrong
GHOST_MS = 15_000  # of a try: what the model proposes for a key is its own affair
NO_GHOST_MS = 5_000
TRIES = 5
GHOST = ".ghost-text-decoration, .ghost-text"
CANCELED = "Canceled"  # what Monaco throws where a later key has made its own work useless
STACK, WORDS, _ = examples()


@contextmanager
def demo(*options: str) -> Iterator[str]:
    """The address of a demo that runs."""
    process = subprocess.Popen([*CAESURA, "demo", "--no-browser", *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(READY_MS / 1000)


@pytest.fixture(scope="module")
def address(runtime: Path, warm: None) -> Iterator[str]:
    with demo() as found:
        yield found


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    """After the demo and its engine: Playwright's own loop keeps asyncio from another while it runs."""
    with chromium() as found:
        yield found


@pytest.fixture
def show(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Open the page, with the settings of a context; at the end nothing may have gone wrong in any."""
    faults: list[str] = []
    asked: set[str] = set()
    contexts = []

    def open_page(**settings: Any) -> Page:
        context = browser.new_context(**settings)
        context.set_default_timeout(READY_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda told: faults.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)) if str(error) != CANCELED else None)
        page.on("request", lambda request: asked.add(request.url))
        page.goto(address)
        page.wait_for_selector("#engine[data-state=ready]", timeout=READY_MS)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
    host, _, token = address.partition("/#")
    assert [url for url in asked if not url.startswith((f"{host}/", f"blob:{host}/", "data:"))] == []
    assert [url for url in asked if token in url.partition("#")[0]] == []


def fill(page: Page, gap: int, document: str = STACK.name) -> None:
    """Fill a gap of an example, and wait until both runs are there to be played."""
    page.get_by_role("tab", name=document).click()
    page.get_by_role("button", name=f"gap {gap}").click()
    page.click("#fill")
    page.wait_for_selector("#at:enabled", timeout=READY_MS)


def pause_at(page: Page, ms: float) -> None:
    page.locator("#at").evaluate("(at, ms) => { at.value = ms; at.dispatchEvent(new Event('input')); }", ms)


def at_the_end(page: Page) -> None:
    pause_at(page, float(page.get_attribute("#at", "max") or 0))


def gap_text(page: Page, run: str) -> str:
    """The tokens of a run as they are shown."""
    return "".join(token.text_content() or "" for token in page.query_selector_all(f"#{run} .token"))


def answered(tmp_path: Path, document: Any, gap: int, sampler: str, model: str = "default") -> dict[str, Any]:
    """What the command line answers for the same gap."""
    source = tmp_path / document.name
    source.write_text(document.text)
    before = document.text[: document.gaps[gap - 1]]
    place = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
    command = [*CAESURA, "fill", str(source), "--at", place, "--json", "--deadline-ms", "60000"]
    command += ["--sampler", sampler, "--model", model]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=READY_MS / 1000, check=False)
    return dict(json.loads(ran.stdout))


LINES = """(lines, ghost) => [...lines.children]
  .sort((one, other) => parseInt(one.style.top) - parseInt(other.style.top))
  .map((line) => {
    const shown = line.cloneNode(true);
    shown.querySelectorAll(ghost).forEach((part) => part.remove());
    return shown.textContent;
  })
  .join("\\n")"""


def text_of(page: Page) -> str:
    """All lines of the editor without ghost text; it shows blanks as no-break spaces."""
    return str(page.locator(".view-lines").evaluate(LINES, GHOST)).replace("\u00a0", " ")


def wait_for(page: Page, pattern: str, what: str) -> None:
    """Until the editor's text has it."""
    deadline = time.monotonic() + READY_MS / 1000
    while not re.search(pattern, text_of(page)):
        assert time.monotonic() < deadline, f"{what}: {text_of(page)}"
        page.wait_for_timeout(20)


def ghost_comes(page: Page, within_ms: int = GHOST_MS) -> bool:
    deadline = time.monotonic() + within_ms / 1000
    while not page.query_selector(GHOST) and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    return page.query_selector(GHOST) is not None


def test_ghost_text_comes_while_typing_and_tab_takes_it(show: Callable[..., Page], pictures: Path) -> None:
    page = show(viewport={"width": 1040, "height": 800})
    page.get_by_role("button", name="gap 2").click()
    page.keyboard.type("ret", delay=120)
    for _ in range(TRIES):
        if ghost_comes(page):
            break
        page.keyboard.press("Backspace")
        page.keyboard.type("t")
    page.screenshot(path=pictures / "demo-ghost.png")
    page.keyboard.press("Tab")
    wait_for(page, r"pop\(\) \{\n    return\b.*\n  \}", "Tab takes it")
    page.keyboard.press("Control+z")
    wait_for(page, r"pop\(\) \{\n    ret\n  \}", "one undo takes it back")


def test_both_runs_end_with_what_the_engine_answers(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(reduced_motion="reduce")
    fill(page, 1, WORDS.name)
    at_the_end(page)
    for run, name in (("diffusion", "verify"), ("left_to_right", "left_to_right")):
        expected = answered(tmp_path, WORDS, 1, name)
        assert gap_text(page, run) == expected["holes"][0]["text"]
        tokens, steps = sum(expected["tokens"].values()), expected["steps"]
        said = f"{tokens} tokens in {steps} forwards, {tokens / steps:.1f} each"
        assert page.inner_text(f"#{run} .figures").startswith(said)
        assert re.fullmatch(r"\d+ ms", page.inner_text(f"#{run} .clock"))


def test_the_canvas_of_small_fills_alone(browser: Browser, tmp_path: Path) -> None:
    with demo("--model", "small") as address:
        page = browser.new_page(reduced_motion="reduce")
        page.set_default_timeout(READY_MS)
        page.goto(address)
        page.wait_for_selector("#engine[data-state=ready]")
        page.select_option("#sampler", "threshold")
        fill(page, 1, WORDS.name)
        at_the_end(page)
        expected = answered(tmp_path, WORDS, 1, "threshold", "small")
        inserted = expected["holes"][0]["text"]
        assert inserted
        assert gap_text(page, "diffusion").startswith(inserted)  # the command line inserts no more than is sound
        assert expected["tokens"]["canvas"]
        page.close()


def test_a_model_without_a_canvas_says_so(browser: Browser, tmp_path: Path) -> None:
    bare = without_canvas("coder", tmp_path / "bare")
    with demo("--model", str(bare)) as address:
        page = browser.new_page()
        page.set_default_timeout(READY_MS)
        page.goto(address)
        page.wait_for_selector("#engine[data-state=ready]")
        page.get_by_role("button", name="gap 1").click()
        page.select_option("#sampler", "threshold")
        page.click("#fill")
        page.get_by_text("The model bare has no canvas").wait_for()
        page.close()


def without_canvas(model: str, folder: Path) -> Path:
    """A model that is named after its folder: the files of another one, without its canvas."""
    shipped = locate(model)
    folder.mkdir()
    for path in [*shipped.glob("base*.safetensors"), shipped / "tokenizer.json"]:
        (folder / path.name).symlink_to(path)
    config = json.loads((shipped / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"name": folder.name}))
    write_manifest(folder, {})
    return folder


def test_the_slider_goes_through_the_steps(show: Callable[..., Page], pictures: Path) -> None:
    page = show(viewport={"width": 1280, "height": 860}, reduced_motion="reduce", color_scheme="light")
    fill(page, 2)
    pause_at(page, 0)
    assert gap_text(page, "diffusion") == gap_text(page, "left_to_right") == ""
    shown, last = [""], float(page.get_attribute("#at", "max") or 0)
    page.focus("#at")
    while float(page.input_value("#at")) < last:
        before = float(page.input_value("#at"))
        page.keyboard.press("ArrowRight")
        assert float(page.input_value("#at")) > before
        if (text := gap_text(page, "left_to_right")) != shown[-1]:
            assert text.startswith(shown[-1]), "what is written from left to right stays"
            shown.append(text)
        said = page.get_attribute("#at", "aria-valuetext") or ""
        assert re.fullmatch(r"\d+ ms; Caesura step \d+ of \d+; left to right step \d+ of \d+", said)
        if len(shown) == 8:
            page.screenshot(path=pictures / "demo-light.png")
    steps = re.findall(r"step (\d+) of (\d+)", said)
    assert all(step == of for step, of in steps)
    assert len(shown) > 2, "it comes in pieces; on a busy machine some steps come together"
    page.keyboard.press("ArrowLeft")
    assert float(page.input_value("#at")) < last


def test_it_plays_by_itself_and_pauses(show: Callable[..., Page]) -> None:
    page = show()
    page.select_option("#speed", "24")
    fill(page, 2)
    page.get_by_role("button", name="Pause").click()
    at = float(page.input_value("#at"))
    assert at < float(page.get_attribute("#at", "max") or 0)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("at => Number(document.querySelector('#at').value) > at", arg=at)
    page.get_by_role("button", name="Pause").click()
    stays = page.input_value("#at")
    page.wait_for_timeout(300)
    assert page.input_value("#at") == stays


def test_a_fill_is_inserted_into_the_text_that_it_was_asked_for_and_into_no_other(
    show: Callable[..., Page], tmp_path: Path
) -> None:
    page = show(reduced_motion="reduce")
    fill(page, 2)
    inserts = [page.locator(f"#{run} .insert") for run in ("diffusion", "left_to_right")]
    at_the_end(page)
    text = answered(tmp_path, STACK, 2, "verify")["text"]
    assert gap_text(page, "diffusion").startswith(text)  # the model may go on after the block
    inserts[0].click()
    wait_for(page, re.escape(f"pop() {{\n    {text}\n  }}\n"), "the text is inserted")
    assert [button.is_enabled() for button in inserts] == [False, False]
    page.keyboard.press("Control+z")
    wait_for(page, r"pop\(\) \{\n    \n  \}", "one undo takes it back")
    assert [button.is_enabled() for button in inserts] == [True, True]


def test_a_gap_is_where_edits_before_it_have_moved_it(show: Callable[..., Page]) -> None:
    page = show(reduced_motion="reduce")
    page.get_by_role("button", name="gap 1").click()
    page.keyboard.type("this.limit")
    page.get_by_role("button", name="gap 2").click()
    page.keyboard.type("return 1;")
    wait_for(page, r"pop\(\) \{\n    return 1;\n", "the second gap is still in pop")


def test_a_document_is_as_it_was_left_and_the_runs_say_whose_they_are(show: Callable[..., Page]) -> None:
    page = show(reduced_motion="reduce")
    page.get_by_role("button", name="gap 2").click()
    page.keyboard.type("return 1;")
    page.get_by_role("tab", name=WORDS.name).click()
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#at:enabled")
    page.wait_for_selector(".gap-empty")
    page.get_by_role("tab", name=STACK.name).click()
    page.wait_for_selector(".gap-empty", state="detached")
    page.get_by_role("tab", name=WORDS.name).click()
    page.wait_for_selector(".gap-empty")
    page.get_by_role("tab", name=STACK.name).click()
    page.keyboard.type(" // here")
    wait_for(page, r"pop\(\) \{\n    return 1; // here\n", "the cursor is where it was")
    assert page.inner_text("#said").startswith(f"{WORDS.name}, ")


def test_another_seed_may_draw_another_answer(show: Callable[..., Page]) -> None:
    page = show(reduced_motion="reduce")
    texts = set()
    for seed in ("0", "1", "2", "3"):
        page.fill("#seed", seed)
        fill(page, 2, WORDS.name)  # a body, of which the model is not sure
        at_the_end(page)
        texts.add(gap_text(page, "left_to_right"))
    assert len(texts) > 1


def test_without_the_token_the_page_says_how_to_open_it(browser: Browser, address: str, pictures: Path) -> None:
    page = browser.new_page()
    page.goto(address.partition("#")[0])
    page.wait_for_selector("#engine[data-state=unavailable]")
    assert page.inner_text("#engine") == "Open the address that `caesura demo` printed; it holds a token."
    assert page.query_selector("main") is None
    page.screenshot(path=pictures / "demo-no-token.png")
    page.goto(address)
    page.wait_for_selector("#engine[data-state=ready]", timeout=READY_MS)
    page.close()


def test_the_token_does_not_stay_in_the_address_and_the_key_stays_with_the_tab(
    show: Callable[..., Page], address: str
) -> None:
    page = show()
    host, _, token = address.partition("#")
    assert page.url == host
    page.reload()
    page.wait_for_selector("#engine[data-state=ready]", timeout=READY_MS)
    assert page.url == host
    key = page.evaluate("sessionStorage.getItem('key')")
    assert re.fullmatch(r"[\w-]{43}", key)
    assert key != token
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length") == 0


def paste(page: Page, text: str) -> None:
    """Into the editor; `text` is an expression of JavaScript."""
    page.evaluate(f"""() => {{
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", {text});
      const into = {{ clipboardData, bubbles: true, cancelable: true }};
      document.activeElement.dispatchEvent(new ClipboardEvent("paste", into));
    }}""")


def test_a_text_over_the_limit_ends_ghost_text_with_a_sentence(browser: Browser, address: str, pictures: Path) -> None:
    page = browser.new_page(viewport={"width": 1040, "height": 800})
    page.goto(address)
    page.wait_for_selector("#engine[data-state=ready]", timeout=READY_MS)
    sentence = "The request is longer than the 2,097,152 bytes that the demo accepts."
    page.get_by_role("button", name="gap 2").click()
    paste(page, "'x = 1;\\n'.repeat(500_000)")
    page.wait_for_selector("#engine[data-state=unavailable]", timeout=READY_MS)
    assert page.inner_text("#engine") == f"{sentence} Reload the page for ghost text."
    page.click("#fill")
    page.wait_for_selector("#said[data-bad]", timeout=READY_MS)
    assert page.inner_text("#said") == sentence
    page.screenshot(path=pictures / "demo-limit.png")
    page.get_by_role("tab", name=WORDS.name).click()
    page.keyboard.type("ret", delay=120)
    assert not ghost_comes(page, NO_GHOST_MS)
    page.close()


def test_half_an_emoji_is_sent_as_text(show: Callable[..., Page]) -> None:
    page = show()
    page.get_by_role("button", name="gap 1").click()
    paste(page, "'// \\ud83d'")
    wait_for(page, r"// .\) \{\n", "the half is in the text")
    page.get_by_role("button", name="gap 2").click()
    page.keyboard.type("ret", delay=120)
    for _ in range(TRIES):
        if ghost_comes(page):
            break
        page.keyboard.press("Backspace")
        page.keyboard.type("t")
    assert page.query_selector(GHOST)
    assert page.get_attribute("#engine", "data-state") == "ready"
    fill(page, 2)
    assert page.get_attribute("#said", "data-bad") is None


def test_tab_leaves_the_text_as_the_hint_says(show: Callable[..., Page]) -> None:
    page = show()
    assert "Ctrl+M" in page.inner_text(".hint")
    page.get_by_role("button", name="gap 1").click()
    page.keyboard.press("Control+m")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "fill"


def test_it_is_dark_where_that_is_preferred_and_fits_a_narrow_window(show: Callable[..., Page], pictures: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = show(color_scheme=scheme, viewport={"width": 420, "height": 900}, reduced_motion="reduce")
        fill(page, 2, document=WORDS.name)
        page.screenshot(path=pictures / f"demo-narrow-{scheme}.png", full_page=True)
        grounds.append(page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))
        assert page.locator("body").evaluate("body => document.documentElement.scrollWidth <= innerWidth")
    light, dark = (sum(map(int, re.findall(r"\d+", ground)[:3])) for ground in grounds)
    assert dark < 150 < 600 < light
