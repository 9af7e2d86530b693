"""The tier of a test, by its folder or file: unit, statistical or end to end. Input: a path. Output: the name of a marker.

Statistical tests compare samples with exact answers and take their time for computing. End-to-end tests call the product as a
user does: commands, processes, browsers, pages, whole reproductions. All others are unit tests. A folder's name stands for all
of its files; a file that is listed itself belongs where it is listed.
"""

from pathlib import PurePath

STATISTICAL = frozenset(
    (
        "estimation",
        "fields",
        "regression",
        "solve",
        "statistics",
        "tuning",
        "approx/test_search.py",
        "approx/test_trust.py",
        "core/test_control_variates.py",
        "core/test_distinct_rows.py",
        "core/test_learned_coordinates.py",
        "core/test_oracles.py",
        "engines/test_exact_moments.py",
        "engines/test_lanes_control_variates.py",
        "engines/test_lanes_exact.py",
        "engines/test_lanes_martingale.py",
        "engines/test_lanes_schemes.py",
        "engines/test_pallas_schemes.py",
        "engines/test_random.py",
        "interop/test_blackjax.py",
        "interop/test_numpyro_plans.py",
        "interop/test_numpyro_runs.py",
        "interop/test_posteriors.py",
        "interop/test_sklearn.py",
        "paper/test_catalogue_engines.py",
        "paper/test_measures.py",
        "prediction/test_random_plans.py",
        "schemes/test_diagonal_kick.py",
        "schemes/test_draws_per_gradient.py",
        "schemes/test_martingale.py",
        "targets/test_separable.py",
    )
)

END_TO_END = frozenset(
    (
        "app",
        "benchmarks",
        "docs",
        "explore",
        "paper",
        "survival",
        "workers",
        "datasets/test_examples.py",
        "engines/test_mesh.py",
        "regression/test_against_nuts.py",
        "tables/test_choosing.py",
        "tables/test_command.py",
        "tables/test_fit.py",
        "tables/test_large.py",
        "tables/test_model_checks.py",
        "tables/test_nasty_files.py",
        "tables/test_options.py",
        "tables/test_page.py",
        "tables/test_saved.py",
    )
)

# The name of the marker, what `pytest --markers` says of it, and its folders and files; unit tests are what is left.
TIERS = {
    "unit": ("one part against exact answers, in a blink", frozenset()),
    "statistical": ("samples against exact answers", STATISTICAL),
    "end_to_end": ("the product as a user calls it: commands, processes, browsers, pages", END_TO_END),
}


def tier(path: PurePath) -> str:
    """The marker of the tests in a file; the file's own entry wins over its folder's."""
    for name in (f"{path.parent.name}/{path.name}", path.parent.name):
        for marker, (_, places) in TIERS.items():
            if name in places:
                return marker
    return "unit"
