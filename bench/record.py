"""Record a real run of `caesura demo` as an animated picture: the one at the top of the README.

    python bench/record.py --out docs/demo.webp [--document words.go] [--gap 1] [--slow 1 24] [--dark]

The page runs in a Chromium without a screen. It fills the gap twice, so that neither loading nor a cold cache is in the
picture, and the second run is played on its own clock: a frame for every step, shown as long as it was, once for each
factor of `--slow`; the page says which. Needs chromium on PATH and `pip install -e '.[real]'`.
"""

import argparse
import io
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from PIL import Image
from playwright.sync_api import Page

from tests.real.browser import chromium

SIZE = {"width": 1040, "height": 760}
SCALE = 1.5  # of the picture to that, for sharp letters
HOLD_MS = 2500.0  # how long the end of a playing stays
LEAST_MS = 20.0  # of a frame: browsers show shorter ones longer
PATIENCE_MS = 300_000


def fill(page: Page) -> None:
    page.click("#fill")
    page.wait_for_selector("#play:disabled")
    page.wait_for_selector("#play:enabled", timeout=PATIENCE_MS)


def marks(page: Page) -> list[float]:
    """When something was to be seen, in milliseconds: the places where the arrow keys stop."""
    at = page.locator("#at")
    at.evaluate("at => { at.value = 0; at.dispatchEvent(new Event('input')); }")
    found, last = [0.0], float(at.get_attribute("max") or 0)
    while found[-1] < last:
        at.press("ArrowRight")
        found.append(float(at.input_value()))
    at.blur()
    return found


def frames(page: Page, times: list[float], slow: float) -> list[tuple[Image.Image, float]]:
    """The page at these times, and how long each is shown."""
    page.select_option("#speed", str(int(slow)))
    chosen = [times[0]]
    for time in times[1:-1]:
        if (time - chosen[-1]) * slow >= LEAST_MS:
            chosen.append(time)
    chosen.append(times[-1])
    lasting = [max(LEAST_MS, (after - before) * slow) for before, after in pairwise(chosen)]
    return [(picture(page, time), ms) for time, ms in zip(chosen, [*lasting, HOLD_MS], strict=True)]


def picture(page: Page, time: float) -> Image.Image:
    page.locator("#at").evaluate("(at, ms) => { at.value = ms; at.dispatchEvent(new Event('input')); }", time)
    return Image.open(io.BytesIO(page.screenshot(scale="device"))).convert("RGB")


def record(options: argparse.Namespace, address: str) -> str:
    """Write the picture; what the page says of both runs."""
    with chromium() as browser:
        page = browser.new_page(
            viewport=SIZE,
            device_scale_factor=SCALE,
            color_scheme="dark" if options.dark else "light",
            reduced_motion="reduce",
        )
        page.goto(address)
        page.wait_for_selector("#engine[data-state=ready]", timeout=PATIENCE_MS)
        page.get_by_role("tab", name=options.document).click()
        page.get_by_role("button", name=f"gap {options.gap}").click()
        fill(page)
        fill(page)
        times = marks(page)
        shown = [frame for slow in options.slow for frame in frames(page, times, slow)]
        said = [
            f"{run}: {page.inner_text(f'#{run} .clock, #{run} .figures')}" for run in ("diffusion", "left_to_right")
        ]
        (first, _), *others = shown
        first.save(
            options.out,
            save_all=True,
            append_images=[image for image, _ in others],
            duration=[round(ms) for _, ms in shown],
            loop=0,
            quality=82,
            method=6,
            minimize_size=True,
        )
    return f"{len(shown)} frames; {'; '.join(said)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--document", default="words.go")
    parser.add_argument("--gap", type=int, default=1)
    parser.add_argument("--slow", type=int, nargs="+", default=[1, 24], choices=(1, 4, 8, 24), help="default: 1 24")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    command = [sys.executable, "-P", "-m", "caesura", "demo", "--no-browser"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    try:
        said = record(options, demo.stdout.readline().split()[-1])
    finally:
        demo.terminate()
        demo.wait()
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} kB; {said}")


if __name__ == "__main__":
    main()
