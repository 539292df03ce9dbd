"""Write docs/benchmarks/README.md from README.template and the JSON results, and draw charts.

Also the sections of tables/README.md that say what each table gains (`gains.py`).

python docs/benchmarks/render.py [--check]

What a template may say is in `template.py`; the functions of its fields are in `served.py`,
`compared.py`, `tuned.py`, `engines.py` and `zoo_results.py`. With --check nothing is written: the
exit code is 1 where a page is not what the template and the results make.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import compared
import engines
import gains
import served
import start_chart
import template
import tuned
import zoo_results

from warmup.bench.charts.chart import Chart
from warmup.bench.charts.draw import draw

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FUNCTIONS = {
    name: function
    for module in (served, compared, tuned, engines, zoo_results)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__
}


def page() -> str:
    """Return the whole page."""
    text = (HERE / "README.template").read_text(encoding="utf-8")
    return template.render(text, RESULTS, FUNCTIONS)


def charts() -> Iterator[tuple[str, Chart]]:
    """Yield the charts that `warmup compare` and `warmup bench` do not draw, with their names."""
    classes = ("plain", "biasgelu", "silumul", "residual")
    products = template.load(RESULTS, *(f"compare-products-{name}-*" for name in classes))
    yield "compare-products-speedup", compared.products_chart(products)
    for name, document in template.load(RESULTS, "shapes-llama-h200", "shapes-swiglu-h200").items():
        yield f"{name}-total", served.mix_chart(document)
    for name, document in template.load(RESULTS, "growth-h200", "growth-cpu").items():
        for ending, chart in served.growth_charts(document).items():
            yield f"{name}-{ending}", chart
    for name, document in template.load(RESULTS, "decode-h100").items():
        yield f"{name}-roofline", tuned.decode_roofline(document)
    names = (file for files in start_chart.MODELS.values() for file in files)
    yield "start-h200", start_chart.start_chart(template.load(RESULTS, *names))


def main() -> None:
    """Write the page and the charts, or check the page."""
    pages = {HERE / "README.md": page(), gains.PAGE: gains.page()}
    if "--check" in sys.argv:
        sys.exit(any(path.read_text(encoding="utf-8") != text for path, text in pages.items()))
    for name, chart in charts():
        draw(chart, HERE / "charts" / name)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
