"""The pages in a real browser: the system's Chromium, driven by Playwright (the extra `browser`)."""

import io
import shutil

import pytest
from PIL import Image

from fedjax_bal.report import write_comparison_page, write_run_page, write_sweep_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (360, 400, 768, 1280, 1920)
SWEEP = "name: mine\nsweep: [{partition.clients: [10, 200], paper.accuracy.fedavg: [0.5, 0.9]}, {lr: [0.1, 0.2]}]\n"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(make_run, make_cohorts, tmp_path_factory):
    """A page of each kind, with a long name; in the sweep more methods than a panel has room for, and a paper."""
    home = tmp_path_factory.mktemp("pages")
    methods = ("fedavg", "scaffold+balanced_softmax_with_a_long_name", "rebafl")
    run = make_cohorts(make_run(home / "run", methods=methods, rounds=5))
    other = make_run(home / "other", methods=methods, rounds=5, gain=0.01)
    sweep = home / "sweep"
    sweep.mkdir()
    (sweep / "sweep.yaml").write_text(SWEEP)
    rows = [
        f"{clients},{theirs},{rate},p,{method},{seed},done,{0.4 + 0.1 * seed + rate},"
        for clients, theirs in ((10, 0.5), (200, 0.9)) for rate in (0.1, 0.2)
        for method in (*methods, *(f"method_{place}" for place in range(9))) for seed in (0, 1)
    ]  # fmt: skip
    heads = "partition.clients,paper.accuracy.fedavg,lr,point,method,seed,status,last5_accuracy,failure"
    (sweep / "results.csv").write_text("\n".join([heads, *rows]) + "\n")
    return {
        "run": write_run_page(run),
        "sweep": write_sweep_page(sweep),
        "comparison": write_comparison_page([run, other], home / "out.html"),
    }


@pytest.fixture(params=["run", "sweep", "comparison"])
def file(pages, request):
    return pages[request.param]


def opened(browser, file, scheme="light", **options):
    """The page, and the list of what its console says."""
    page = browser.new_context(color_scheme=scheme, **options).new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    return page, said


def test_nothing_overflows_at_any_width_and_the_console_is_silent(browser, file):
    page, said = opened(browser, file)
    page.evaluate("document.querySelectorAll('details').forEach(own => own.open = true)")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    page.context.close()


def test_figures_are_loaded_and_have_names(browser, file):
    page, _ = opened(browser, file)
    figures = page.query_selector_all("figure img")
    assert figures and all(own.get_attribute("alt") for own in figures)
    assert sum(own.is_visible() for own in figures) == len(page.query_selector_all("figure"))
    assert all(own.evaluate("image => image.complete && image.naturalWidth > 100") for own in figures)
    page.context.close()


def test_figures_of_a_phone_are_drawn_for_its_width(browser, file):
    page, _ = opened(browser, file, viewport={"width": 390, "height": 800})
    shown = [image for image in page.query_selector_all("figure img") if image.is_visible()]
    assert len(shown) == len(page.query_selector_all("figure"))
    for image in shown:
        width = image.bounding_box()["width"]
        assert 300 < width <= 358 and 0.9 < width / image.evaluate("own => own.naturalWidth") < 1.2
    page.context.close()


def test_heat_maps_run_from_the_background_to_bright_on_a_dark_page(browser, pages):
    """A white pixel of a figure has the colour of the page, a black one is bright."""
    page, _ = opened(browser, pages["run"], "dark", viewport={"width": 1280, "height": 900})
    picture = Image.open(io.BytesIO(page.query_selector("figure img").screenshot())).convert("L")
    background = Image.open(io.BytesIO(page.screenshot(clip={"x": 2, "y": 2, "width": 1, "height": 1}))).convert("L")
    least, most = picture.getextrema()
    assert abs(least - background.getpixel((0, 0))) <= 2 and most > 180
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_accessibility_checker_finds_nothing(browser, file, scheme):
    checker = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra `browser`")
    page, _ = opened(browser, file, scheme, bypass_csp=True)
    found = checker.Axe().run(page).response["violations"]
    assert [(own["id"], own["nodes"][0]["html"][:300]) for own in found] == []
    page.context.close()
