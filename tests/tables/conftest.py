"""The default tests of most files here write reports without images: laying out and drawing them takes a second for each report.

What is on a figure is still put there, so that it cannot fail. The files named here look at images, or have names that could
break one; the slow tests draw everything.
"""

import pytest

DRAWN = frozenset(("test_hostile_tables.py", "test_nasty_files.py", "test_page.py"))


@pytest.fixture(autouse=True, scope="module")
def _images_where_they_are_looked_at(request):
    with pytest.MonkeyPatch.context() as patch:
        if "not slow" in request.config.getoption("markexpr") and request.path.name not in DRAWN:
            patch.setattr("gyromc.tables.figures.lay_out", lambda figure: None)
            patch.setattr("gyromc.show.pages.image", lambda figure, format, **options: b"<svg/>")
        yield
