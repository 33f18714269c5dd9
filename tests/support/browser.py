"""The browser of the system, and what is judged of a page in it."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    async_playwright,
)

from models.console_links import LOGIN_PATH, create_link
from tests.support.stack import Stack

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CONTRASTS = """
() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((each) => {
      const part = each / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let one = element; one !== null; one = one.parentElement) {
      const color = parse(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element);
    const isShown = element.checkVisibility() && !element.matches(":disabled");
    if (!hasText || !isShown || element.closest(".skip")) continue;
    const [a, b] = [luminance(parse(style.color)), luminance(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24;
    if (contrast < (isLarge ? 3 : 4.5)) {
      found.push(`${element.tagName}.${element.className}: ${contrast.toFixed(2)}`);
    }
  }
  return found;
}
"""
"""Selects the texts whose contrast is below WCAG's level AA."""


def find_browser(*, is_required: bool) -> str:
    """The program. If there is none, the test is skipped, or fails if it `is_required`."""
    for program in _PROGRAMS:
        if (path := shutil.which(program)) is not None:
            return path
    reason = "no browser: install one (Debian: apt-get install chromium)"
    if is_required:
        pytest.fail(reason)
    pytest.skip(reason)


@asynccontextmanager
async def system_browser(program: str) -> AsyncIterator[Browser]:
    """The browser of this program, without a window."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass(slots=True)
class Operator:
    """Somebody who is logged in to the console of a deployment, with one tab."""

    tab: Page
    origin: str
    faults: list[str] = field(default_factory=list)
    """dialogs, errors of scripts, and what the policy of the page has refused"""

    async def open(self, path: str) -> None:
        """Opens a page. `path`: with `/console`."""
        await self.tab.goto(f"{self.origin}{path}")

    async def check_legible(self, width: int, where: str) -> None:
        """Every text has enough contrast, and nothing is wider than the window."""
        low = await self.tab.evaluate(CONTRASTS)
        assert not low, (where, low)
        assert await self.tab.evaluate("document.documentElement.scrollWidth") <= width, where

    async def save(self, folder: Path, name: str) -> None:
        """Saves a picture of the tab."""
        await self.tab.screenshot(path=folder / f"{name}.png")


@asynccontextmanager
async def logged_in(
    browser: Browser, stack: Stack, scheme: str = "light", width: int = 1280
) -> AsyncIterator[Operator]:
    """An operator who has used a one-time link. `scheme`: `light` or `dark`."""
    origin = f"http://127.0.0.1:{stack.webs[0].port}"
    context: BrowserContext = await browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 760},
        reduced_motion="reduce",
    )
    try:
        operator = Operator(await context.new_page(), origin)
        _watch(operator)
        await operator.open(f"{LOGIN_PATH}{create_link(stack.dsn)}")
        await operator.tab.wait_for_url(f"{origin}/console")
        yield operator
    finally:
        await context.close()
    assert not operator.faults


def _watch(operator: Operator) -> None:
    def on_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            operator.faults.append(message.text)

    async def on_dialog(dialog: Dialog) -> None:
        operator.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    operator.tab.on("console", on_message)
    operator.tab.on("dialog", on_dialog)
    operator.tab.on("pageerror", lambda error: operator.faults.append(str(error)))
