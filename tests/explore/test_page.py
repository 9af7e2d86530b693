"""The page in a real browser: no complaints, every control acts, its numbers are those of `predict`, it can be used by all."""

import json
import threading
import time

import pytest

import gyromc as gm
from gyromc.explore.server import PageServer, copy_in_one_file
from support import explorer as vectors
from support.browsing import LIMIT, needs_chromium, new_context

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def address():
    with PageServer(0) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server.url
        server.shutdown()


@pytest.fixture
def opened(browser, address):
    """A function that opens the page with some settings; at the end pages are closed, and none may have complained."""
    contexts, complaints, foreign = [], [], []

    def open_(settings="", width=1280, url=None, **options):
        context = new_context(browser, width, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda r: foreign.append(r.url) if not r.url.startswith((address, "data:", "file:")) else None
        )
        page.goto(f"{url or address}#{settings}")
        wait(page, "Boolean(window.explorer)")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert foreign == []


def wait(page, condition):
    """Wait until a condition of the page holds. `evaluate` works under the page's policy, which forbids `eval`."""
    end = time.monotonic() + LIMIT / 1000
    while time.monotonic() < end:
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"{condition} never held: {page.evaluate('JSON.stringify(window.explorer)')[:500]}")


def settled(page, condition="window.explorer.ready"):
    """Wait until a condition holds and the page shows it: charts and tables are drawn a while after the numbers are known."""
    wait(page, f"{condition} && !window.explorer.stale")


def state(page):
    return json.loads(page.evaluate("JSON.stringify(window.explorer)"))


@pytest.fixture
def page(opened):
    return opened("chains=20", reduced_motion="reduce")


NUMBERS = {
    "kappa": ("target=gaussian", 7), "angle": ("target=gaussian", -20), "beta": ("target=cosine", 0.8),
    "bend": ("target=banana", 0.3), "distance": ("target=mixture", 2), "omega": ("dynamics=rotation", -4.5),
    "straighten": ("coordinates=bent", 0.25),
    "alpha": ("dynamics=hfhr", 0.5), "gamma": ("dynamics=hfhr", 3), "a": ("dynamics=gaul", 2),
    "gaulGamma": ("dynamics=gaul", 5), "c1": ("dynamics=gaul", 0.8), "c2": ("dynamics=gaul", 1.2),
    "eta": ("", 0.033), "tau": ("", 1.5), "budget": ("", 5000), "chains": ("", 33), "speed": ("", 7), "seed": ("", 99),
}  # fmt: skip
CHOICES = {
    "target": ["cosine", "banana", "mixture", "logistic", "gaussian"],
    "dynamics": ["reversible", "hfhr", "gaul", "rotation"],
    "coordinates": ["white", "bent", "theta"],
    "scheme": ["balanced", "lm_ab2", "euler"],
    "observable": ["t2", "sum", "t1sq", "t2sq", "sumsq", "t1"],
    "start": ["point", "target"],
    "flow": ["descent", "rotation", "none", "all"],
    "theme": ["dark", "light", "auto"],
}


def set_number(page, name, value):
    page.evaluate(
        "([id, v]) => { const e = document.getElementById(id); e.value = v; e.dispatchEvent(new Event('change')); }",
        [f"{name}-number", str(value)],
    )


def choose(page, name, value):
    page.evaluate(
        "([id, v]) => { const e = document.getElementById(id); e.value = v; e.dispatchEvent(new Event('change')); }",
        [name, value],
    )


@pytest.mark.slow
def test_every_control_changes_the_state(page):
    for name, values in CHOICES.items():
        for value in values:
            choose(page, name, value)
            assert state(page)["settings"][name] == value
    for name, (needs, value) in NUMBERS.items():
        if needs:
            choose(page, *needs.split("="))
        assert page.locator(f"#{name}-number").evaluate("e => !e.closest('[hidden]')")
        set_number(page, name, value)
        assert state(page)["settings"][name] == value
        assert f"{name}={value}" in page.evaluate("location.hash")
    choose(page, "dynamics", "hfhr")
    for plane in ("phase", "theta"):
        choose(page, "plane", plane)
        assert state(page)["settings"]["plane"] == plane


@pytest.mark.parametrize("dynamics", CHOICES["dynamics"])
def test_the_open_controls_fit_a_small_screen(opened, dynamics):
    page = opened(f"chains=5&dynamics={dynamics}&coordinates=bent", reduced_motion="reduce")
    page.set_viewport_size({"width": 1280, "height": 800})
    bottom = page.locator(".controls").evaluate(
        "e => [e.scrollHeight - e.clientHeight, e.getBoundingClientRect().bottom]"
    )
    assert bottom[0] <= 0
    assert bottom[1] <= 800


def test_buttons_set_the_rates_that_are_best_for_the_curvature(opened):
    page = opened("chains=5&kappa=12", reduced_motion="reduce")
    for name, best in {"pairing": gm.dynamics.pairing, "fastest": gm.dynamics.fastest}.items():
        page.click(f"[data-best={name}]")
        assert state(page)["settings"]["omega"] == pytest.approx(abs(best([1.0, 12.0]).Q).max(), abs=5e-4)
    page.click("[data-best=least]")
    assert state(page)["settings"]["omega"] == 3
    settled(page)
    sides, least = state(page)["sides"], gm.dynamics.least_variance([1.0, 12.0], [1.0, 0.0], rate=3.0)
    assert abs(least.Q).max() == pytest.approx(3)
    assert sides["yours"]["constant"]["value"] == pytest.approx(sides["beside"]["constant"]["value"] / 10, rel=1e-9)


def test_sliders_move_by_the_keyboard_and_the_number_follows(opened):
    page = opened("chains=5", reduced_motion="reduce")
    page.focus("#eta-slider")
    before = state(page)["settings"]["eta"]
    page.keyboard.press("ArrowRight")
    after = state(page)["settings"]["eta"]
    assert after > before
    assert float(page.input_value("#eta-number")) == after


def test_wrong_inputs_are_replaced_and_said(opened):
    page = opened("eta=5&target=cheese&chains=x&nonsense=1&at=-3", reduced_motion="reduce")
    found = state(page)
    assert found["settings"]["eta"] == 2
    assert found["settings"]["target"] == "gaussian"
    assert len(found["notices"]) == 5
    assert page.locator("#notice").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_buttons_stay_where_they_are_while_numbers_come_in(opened, width):
    page = opened("chains=10", width, reduced_motion="reduce")
    page.evaluate(
        "() => new PerformanceObserver((list) => { window.moved = [...(window.moved ?? []), "
        "...list.getEntries().flatMap((e) => e.sources.map((s) => s.node?.className ?? s.node?.nodeName))]; }"
        ").observe({ type: 'layout-shift', buffered: true })"
    )
    places = (
        "['play', 'step', 'reset'].map((id) => JSON.stringify(document.getElementById(id).getBoundingClientRect()))"
    )
    before = page.evaluate(places)
    settled(page)
    assert page.text_content("#headline")
    assert page.evaluate(places) == before
    assert "run" not in page.evaluate("window.moved ?? []")  # a button that moves is missed by a click on its way


def test_step_reset_and_play(opened):
    page = opened("chains=10", reduced_motion="reduce")
    assert state(page)["t"] == 0  # reduced motion: nothing moves by itself
    page.click("#step")
    page.click("#step")
    assert state(page)["t"] == 2
    page.click("#reset")
    assert state(page)["t"] == 0
    page.click("#play")
    wait(page, "window.explorer.t > 3")
    page.click("#play")
    assert state(page)["paused"]


def test_the_chart_of_unstable_chains_has_coordinates_that_svg_reads(opened):
    page = opened("kappa=100&omega=20&tau=10&eta=2&observable=t1sq&at=60&chains=3", reduced_motion="reduce")
    settled(page, "window.explorer.t === 60")
    points = page.locator("#chart-average polygon").evaluate_all(
        "all => all.map((one) => one.getAttribute('points')).join(' ')"
    )
    assert points  # `opened` fails at the end where the browser complained
    assert "e+" not in points


def test_the_link_to_the_views_keeps_the_settings(opened):
    page = opened("chains=10&omega=5", reduced_motion="reduce")
    page.focus(".skip")
    page.keyboard.press("Enter")
    found = state(page)
    assert (found["settings"]["omega"], found["notices"]) == (5, [])
    assert page.evaluate("document.activeElement.id") == "views"


def test_a_shared_address_shows_the_same(opened):
    found = []
    for _ in range(2):
        page = opened("at=40&chains=50&target=mixture&seed=5&tau=0.5")
        wait(page, "window.explorer.t === 40 && window.explorer.paused")
        found.append(state(page)["means"])
    assert found[0] == found[1]
    other = opened("at=40&chains=50&target=mixture&seed=6&tau=0.5")
    wait(other, "window.explorer.t === 40 && window.explorer.paused")
    assert state(other)["means"]["yours"]["mean"] != found[0]["yours"]["mean"]


PREDICTED = [
    ("omega=1.5&eta=0.05&observable=sum&kappa=8&angle=30", "rotation", "euler", {"omega": 1.5}, [1.0, 1.0], False, 0.05, 0.0),
    ("dynamics=hfhr&eta=0.05&tau=1&observable=t1sq&kappa=8&angle=30", "hfhr", "euler", vectors.HFHR, [1.0, 0.0], True, 0.05, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("case", PREDICTED, ids=lambda case: case[1])
def test_the_numbers_shown_are_those_of_predict(opened, case):
    settings, kind, scheme, values, u, square, eta, tau = case
    page = opened(settings, reduced_motion="reduce")
    settled(page)
    shown = state(page)["sides"]
    asked = vectors.case(8.0, 30.0, kind, scheme, eta, tau, u, square, **values)
    expected = vectors.on_gaussian(asked)
    near = lambda x: pytest.approx(x, rel=1e-4, abs=1e-9)
    assert shown["yours"]["constant"]["value"] == near(expected["variance"])
    assert shown["beside"]["constant"]["value"] == near(expected["reversible_variance"])
    assert shown["yours"]["now"]["bias"] == near(expected["bias"])
    assert shown["yours"]["limit"] == near(expected["largest_step_size"])
    cells = page.locator("#numbers tbody tr").all_inner_texts()
    assert f"{expected['variance']:.4g}" in cells[0]


def test_what_is_not_known_is_not_shown_as_a_number(opened):
    page = opened("target=banana&chains=10&eta=0.02", reduced_motion="reduce")
    settled(page, "Boolean(window.explorer.sides.beside.now)")
    cells = page.locator("#numbers tbody tr").all_inner_texts()
    assert cells[1].count("not known") == 2
    page = opened("dynamics=gaul&a=0.01&gaulGamma=0.05&c1=5", reduced_motion="reduce")
    assert "not positive definite" in page.inner_text("#headline") or "not positive definite" in state(page)["problem"]


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")])
def test_nothing_that_axe_finds(opened, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = opened("chains=10&dynamics=hfhr", width=width, color_scheme=scheme, reduced_motion="reduce")
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    settled(page)
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_copy_in_one_file_opens_without_a_server(opened, tmp_path):
    (tmp_path / "index.html").write_text(copy_in_one_file(), encoding="utf-8")
    page = opened("target=logistic&chains=10", url=(tmp_path / "index.html").as_uri(), reduced_motion="reduce")
    page.click("#step")
    assert state(page)["t"] == 1


@pytest.mark.slow
def test_frames_a_second_with_500_chains(opened):
    page = opened("chains=500")
    wait(page, "window.explorer.ready && window.explorer.t > 40")
    found = state(page)
    print(f"500 chains: {found['rate']:.0f} frames a second, {found['work']:.1f} ms of work in a frame")
    assert found["means"]["yours"]["mean"] is not None
