"""What a page looks like, wide and narrow, light and dark, beside pictures that were looked at.

``KERNBENCH_UPDATE_PICTURES=1`` draws them anew: look at them before they are kept.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import MISSING, Browser, browser
from tests.page.runs import simulated, two_layers, write_page
from tests.page.test_in_browser import opened

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.campaign,
]

PICTURES = Path(__file__).parent / "pictures"
MOST_MEAN, MOST_OF_TILE = 4, 48
"""Of 255: how far a picture may be off on average, and a tile of it; fonts differ."""
SMALL = """
    const [data, width] = arguments;
    const image = new Image();
    image.src = data;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, Math.round((width * image.height) / image.width)];
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/png");
"""
APART = """
    const SIDE = 20, WIDTH = 21, HEIGHT = 15;
    const tiles = [];
    for (const data of arguments) {
        const image = new Image();
        image.src = data;
        await image.decode();
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [SIDE * WIDTH, SIDE * HEIGHT];
        const context = canvas.getContext("2d");
        context.imageSmoothingQuality = "high";
        context.drawImage(image, 0, 0, canvas.width, (canvas.width * image.height) / image.width);
        const sums = new Float64Array(WIDTH * HEIGHT * 3);
        const { data: pixels } = context.getImageData(0, 0, canvas.width, canvas.height);
        for (let y = 0; y < canvas.height; y++)
            for (let x = 0; x < canvas.width; x++)
                for (let c = 0; c < 3; c++)
                    sums[(Math.floor(y / SIDE) * WIDTH + Math.floor(x / SIDE)) * 3 + c] +=
                        pixels[(y * canvas.width + x) * 4 + c] / SIDE ** 2;
        tiles.push(sums);
    }
    const apart = [...tiles[0]].map((value, i) => Math.abs(value - tiles[1][i]));
    return [apart.reduce((sum, value) => sum + value, 0) / apart.length, Math.max(...apart)];
"""
SHOW = """
    const [theme, id] = arguments;
    document.documentElement.dataset.theme = theme;
    document.getElementById(id).scrollIntoView();
    kernbench.timeline.drawNow();
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")

    def work(rank: int, torch: Any) -> None:
        two_layers(rank % 3, torch)

    return write_page(folder / "page.html", simulated(folder / "a.run", work, 8))


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as result:
        yield result


def drawn(window: Browser, page: Path, width: int, theme: str, section: str) -> str:
    window.size(width, 1000)
    opened(window, page)
    window.run(SHOW, theme, section)
    return f"data:image/png;base64,{base64.b64encode(window.picture()).decode()}"


@pytest.mark.adr("0158-D3")
@pytest.mark.parametrize("section", ["timeline", "kernels"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_a_page_looks_as_it_did(
    window: Browser, page: Path, width: int, theme: str, section: str
) -> None:
    shot = drawn(window, page, width, theme, section)
    kept = PICTURES / f"{section}-{width}-{theme}.png"
    if os.environ.get("KERNBENCH_UPDATE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        small = window.run(SMALL, shot, 420)
        kept.write_bytes(base64.b64decode(small.partition(",")[2]))
    expected = f"data:image/png;base64,{base64.b64encode(kept.read_bytes()).decode()}"
    mean, most = window.run(APART, shot, expected)
    assert mean <= MOST_MEAN, f"{kept.name}: {mean:.1f} of 255 off on average"
    assert most <= MOST_OF_TILE, f"{kept.name}: a tile is {most} of 255 off"


def test_a_timeline_without_its_rows_looks_otherwise(window: Browser, page: Path) -> None:
    window.size(1400, 1000)
    opened(window, page)
    window.run("kernbench.timeline.drawRow = () => {}")
    window.run(SHOW, "light", "timeline")
    shot = f"data:image/png;base64,{base64.b64encode(window.picture()).decode()}"
    kept = (PICTURES / "timeline-1400-light.png").read_bytes()
    expected = f"data:image/png;base64,{base64.b64encode(kept).decode()}"
    mean, most = window.run(APART, shot, expected)
    assert mean > MOST_MEAN or most > MOST_OF_TILE
