"""The account of a tuning as a page: a `Tuned` in, HTML text out."""

import gyromc
from gyromc.show.pages import environment
from gyromc.tuning.tuned import Tuned

__all__ = ["page"]


def page(tuned: Tuned, what: str) -> str:
    """Return the page; `what` is the plan file or experiment that was tuned."""
    template = environment("gyromc.app").get_template("tune.html.j2")
    return template.render(what=what, account=tuned._repr_html_(), version=gyromc.__version__)
