"""`python -m benchmarks.gallery`: the pages that Tilecast writes, as a browser shows them at desktop and phone width, into docs/gallery.

Needs the package `playwright` and a Chromium: its own (`playwright install chromium`), or the system's, which is looked for first.
`--texts` needs neither: it runs the commands in docs/predict.md and docs/serving.md once more and puts what they print in place of the old.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tilecast.cli import main as cli

DOCS = Path(__file__).parent.parent / "docs"
TEXTS = ("predict.md", "serving.md")
TEXT_WIDTH = "150"
FOLDER = DOCS / "gallery"
ASKED = ("--isl", "2048", "--osl", "256")
PAGES = {
    "predict": ("predict", "Qwen/Qwen3-32B", "--gpu", "h100-sxm", "--tp", "2", "--batch", "32", *ASKED),
    "load": ("predict", "Qwen/Qwen3-32B", "--gpu", "h100-sxm", "--tp", "2", "--concurrency", "32", *ASKED),
    "comparison": (
        "predict", "Qwen/Qwen3-32B", "--gpu", "h200-sxm,h100-sxm,a100-sxm-80gb", "--tp", "1,2,4", "--batch", "1:256:x2", *ASKED,
        "--by", "output_tokens_per_s_per_gpu",
    ),
}  # fmt: skip
TRACES = Path(os.environ.get("TILECAST_DATA", "absent")) / "extra" / "kineto_traces"
DIAGNOSED = ("diagnose", "h100_hf_owlv2-large-patch14.json.gz")  # where there is such a trace
VIEWS = (("desktop", 1280, "light"), ("desktop-dark", 1280, "dark"), ("phone", 390, "light"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LARGEST_BYTES = 300_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the pictures [default: docs/gallery]")
    parser.add_argument("--texts", action="store_true", help="instead renew the outputs in docs/predict.md and docs/serving.md")
    given = parser.parse_args()
    out: Path = given.out
    if given.texts:
        for page in (DOCS / name for name in TEXTS):
            page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("gallery: needs a browser: pip install playwright, and a Chromium (or `playwright install chromium`)", file=sys.stderr)
        return 3
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        pages = {name: _written(Path(scratch) / f"{name}.html", command) for name, command in PAGES.items()}
        if TRACES.is_dir():
            with contextlib.chdir(TRACES):
                pages["diagnose"] = _written(Path(scratch) / "diagnose.html", DIAGNOSED)
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, page in pages.items():
            for view, width, scheme in VIEWS:
                _shoot(browser, page, out / f"{name}-{view}.png", width, scheme)
        browser.close()
    return 0


def renewed(text: str) -> str:
    """Every block that starts with "$ tilecast ..." with what the command prints now; a line "..." leaves out what stood there."""
    return re.sub(r"```\n\$ (tilecast [^\n]+)\n(.*?)```", lambda block: _block(block[1], block[2]), text, flags=re.DOTALL)


def _block(command: str, before: str) -> str:
    with patch.dict(os.environ, COLUMNS=TEXT_WIDTH), contextlib.redirect_stdout(io.StringIO()) as printed:
        if cli.run(shlex.split(command)[1:]):
            raise SystemExit(f"gallery: {command} failed")
    lines = [line.rstrip() for line in printed.getvalue().rstrip().splitlines()]
    old = before.splitlines()
    if "..." in old:
        resumes = old[old.index("...") + 1]
        lines = [lines[0], "...", *lines[lines.index(resumes) :]]
    return "\n".join(["```", f"$ {command}", *lines, "```"])


def _written(path: Path, command: tuple[str, ...]) -> Path:
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.run([*command, "--html", str(path)])
    if code or not path.exists():
        raise SystemExit(f"gallery: tilecast {' '.join(command)} wrote no page")
    return path


def _shoot(browser: Any, page: Path, picture: Path, width: int, scheme: str) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, device_scale_factor=1)
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    too_wide = tab.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    tab.screenshot(path=str(picture), full_page=True)
    tab.close()
    from PIL import Image

    Image.open(picture).quantize(255, dither=Image.Dither.NONE).save(picture, optimize=True)
    size = picture.stat().st_size
    print(f"{picture.name}: {size / 1000:.0f} kB{', WIDER THAN THE SCREEN' if too_wide else ''}")
    if len(asked) > 1 or too_wide or size > LARGEST_BYTES:
        raise SystemExit(f"gallery: {picture.name}: asked for {asked[1:]}, too wide: {too_wide}, {size} bytes of {LARGEST_BYTES}")


if __name__ == "__main__":
    sys.exit(main())
