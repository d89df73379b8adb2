"""A real browser for pages: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed() -> str:
    """Where Chromium is; installed with Debian's packages where it is not there yet."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        if subprocess.run(install, capture_output=True).returncode:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True)
            subprocess.run(install, check=True, capture_output=True)
        found = shutil.which("chromium")
    assert found, "this test opens a page in Chromium: install Debian's package 'chromium'"
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=installed(), args=["--no-sandbox"])
        yield opened
        opened.close()
