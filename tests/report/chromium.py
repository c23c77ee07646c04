"""Headless Chromium with as little as possible: a page is opened, and a script in a copy of it writes what it measured into the DOM."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
CONSOLE = re.compile(r"CONSOLE.*|Refused to .*")
FRAME = """<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<body><iframe style="border: 0; width: {width}px; height: 900px; color-scheme: light dark" srcdoc="{inside}"></iframe>"""
"""A window is never narrower than 500 px; a frame can be."""
MEASURE = """
<script>
function rgb(text) { return (text.match(/[0-9.]+/g) || []).map(Number); }
function light(c) {
  const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(node) {
  for (; node; node = node.parentElement) {
    const c = rgb(getComputedStyle(node).backgroundColor);
    if (c.length === 3) return c;
  }
  return [255, 255, 255];
}
function measured() {
  let worst = {ratio: 99};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.getClientRects().length || /^(SCRIPT|STYLE)$/.test(e.tagName)) continue;
    const style = getComputedStyle(e);
    const a = light(rgb(e.closest('svg') ? style.fill : style.color).slice(0, 3)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst.ratio) worst = {ratio, text: walker.currentNode.data.slice(0, 60), class: e.getAttribute('class')};
  }
  const shown = [...document.querySelectorAll('svg')].filter(e => e.getClientRects().length);
  const plots = shown.map(e => { const r = e.getBoundingClientRect(); return [e.closest('section').id, r.width, r.height]; });
  const texts = shown.flatMap(e => [...e.querySelectorAll('text')].map(t => [t.getBoundingClientRect(), e.getBoundingClientRect()]));
  const seen = [...document.querySelectorAll('h1, h2, .verdict p, .rules li, .wrong h3')].filter(e => e.getClientRects().length);
  return {
    window: innerWidth, page: document.documentElement.scrollWidth, plots, worst, title: document.title,
    outside: texts.filter(([t, s]) => t.left < s.left - 2 || t.right > s.right + 6).length,
    paper: getComputedStyle(document.body).backgroundColor, words: seen.map(e => e.innerText),
    unlabelled: shown.filter(e => !e.querySelector('title') || !e.querySelector('desc')).length,
  };
}
const out = document.createElement('pre');
out.id = 'measured';
out.textContent = JSON.stringify(measured());
parent.document.body.append(out);
</script>
"""


def console(page: str, directory: Path) -> list[str]:
    """What the page itself, unchanged, makes Chromium complain of."""
    result = _run(page, directory, "--enable-logging=stderr", "--dump-dom")
    return CONSOLE.findall(result.stderr)


def measure(page: str, directory: Path, width: int, *, dark: bool) -> dict[str, Any]:
    """Sizes, contrast and words of the page in a frame of this width. Its policy is lifted for the script that measures."""
    page = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page)
    inside = html.escape(page.replace("</body>", f"{MEASURE}</body>"))
    frame = FRAME.format(width=width, inside=inside)
    result = _run(frame, directory, _scheme(dark), f"--window-size={max(width, 600)},900", "--dump-dom")
    found = re.search(r'<pre id="measured">(.*?)</pre>', result.stdout, re.S)
    assert found, result.stderr[-2000:]
    return dict(json.loads(html.unescape(found[1])))


def printed(page: str, directory: Path, *, dark: bool) -> tuple[int, str]:
    """The page as PDF: how many sheets, and what is drawn on them."""
    target = directory / "page.pdf"
    _run(page, directory, _scheme(dark), "--no-pdf-header-footer", f"--print-to-pdf={target}")
    data = target.read_bytes()
    assert data.startswith(b"%PDF")
    streams = re.findall(rb"/FlateDecode.*?>>\s*stream\r?\n(.*?)endstream", data, re.S)
    drawn = [zlib.decompressobj().decompress(stream).decode("latin-1") for stream in streams]
    return len(re.findall(rb"/Type /Page\b(?!s)", data)), "\n".join(drawn)


def _scheme(dark: bool) -> str:
    return f"--blink-settings=preferredColorScheme={0 if dark else 1}"


def _run(page: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("chromium: not found; install it: sudo apt-get install chromium")
    path = directory / "page.html"
    path.write_text(page, encoding="utf-8")
    profile = directory / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [program, *QUIET, f"--user-data-dir={profile}", *options, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=False)
