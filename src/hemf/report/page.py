"""HTML page of a report: style sheet, cards, tables and inline figures, all in one file."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hemf._files import atomic_write
from hemf.report import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 150
_COLOURS = {
    plots.INK: "var(--ink)",
    plots.FAINT: "var(--faint)",
    plots.USERS: "var(--users)",
    plots.ITEMS: "var(--items)",
    plots.OTHER: "var(--soft)",
    plots.PAPER: "var(--card)",
}
"""Colours of the figures as variables of the page, for its dark mode."""

_STYLE = """
:root {
  color-scheme: light dark;
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --page: #f4f6f8; --card: #ffffff; --ink: #22272e; --soft: #5b6470; --faint: #d4d9e0;
  --users: #0068a8; --items: #c75100;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171c; --card: #1d2229; --ink: #e4e8ee; --soft: #a3adba; --faint: #3a424d;
    --users: #5cb3f0; --items: #ff9a4d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 var(--font); -webkit-text-size-adjust: 100%;
}
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; }
h2 { font-size: 21px; margin: 40px 0 12px; }
h3 { font-size: 16px; margin: 0; }
p { margin: 4px 0 12px; color: var(--soft); max-width: 75ch; }
.soft { color: var(--soft); font-variant-numeric: tabular-nums; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }
.tile, .card { background: var(--card); border: 1px solid var(--faint); border-radius: 10px; }
.tile { padding: 10px 14px; }
.tile b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 14px; }
.cards { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
.card { padding: 16px 18px; overflow-x: auto; }
.card p { font-size: 14.5px; }
.whole { white-space: nowrap; }
.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; max-height: 560px; }
.wide svg { min-width: 720px; }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; }
th { color: var(--soft); font-weight: 600; }
tr + tr td, tbody tr:first-child td { border-top: 1px solid var(--faint); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
.range { position: relative; height: 10px; min-width: 140px; margin: 7px 0; border-radius: 5px;
  background: var(--faint); }
.range i { position: absolute; top: 0; bottom: 0; border-radius: 5px; background: var(--users);
  opacity: .45; }
.range u { position: absolute; top: -2px; bottom: -2px; width: 4px; margin-left: -2px;
  border-radius: 2px; background: var(--users); }
@media (max-width: 800px) { .cards { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 500px) { .whole { white-space: normal; } th, td { padding-right: 8px; } }
@media print { body { background: none; } .card, .tile { break-inside: avoid; } }
"""


class Markup(str):
    """Text that is HTML.

    >>> cell(Markup("<b>3</b>")), cell("<b>")
    ('<b>3</b>', '&lt;b&gt;')
    """

    __slots__ = ()


def cell(value: object) -> str:
    """Return a value as HTML, escaped unless it is `Markup`."""
    return value if isinstance(value, Markup) else escape(str(value))


def isolated(value: object) -> Markup:
    """Return a name as HTML, isolated from the writing direction of the text around it.

    >>> isolated("שרה <3"), isolated(Markup("<b>3</b>"))
    ('<bdi>שרה &lt;3</bdi>', '<b>3</b>')
    """
    return value if isinstance(value, Markup) else Markup(f"<bdi>{cell(value)}</bdi>")


def page(title: str, subtitle: str, body: Iterable[str]) -> str:
    """Return a whole document.

    >>> page("A & B", "two letters", ["<p>text</p>"]).count("A &amp; B")
    2
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · hemf</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{isolated(title)}</h1>
<p>{isolated(subtitle)}</p>
{"".join(body)}
</main>
</body>
</html>
"""


def tiles(figures: Mapping[str, str]) -> str:
    """Return a row of figures with what they mean.

    >>> tiles({"users": "600"})
    '<div class="tiles"><div class="tile"><b>600</b><span>users</span></div></div>'
    """
    each = (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in figures.items()
    )
    return f'<div class="tiles">{"".join(each)}</div>'


def section(title: str, cards: Iterable[str]) -> str:
    """Return a heading and the cards below it."""
    return f'<h2>{escape(title)}</h2>\n<div class="cards">{"".join(cards)}</div>\n'


def card(title: str, text: str, content: str = "", *, wide: bool = False) -> str:
    """Return a card: title, a sentence on how to read it, picture or table.

    >>> card("Sizes", "", "…")
    '<section class="card"><h3>Sizes</h3>…</section>'
    """
    kind = "card wide" if wide else "card"
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return f'<section class="{kind}"><h3>{cell(title)}</h3>{paragraph}{content}</section>'


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()
) -> str:
    """Return a table; the columns in ``numbers`` are right-aligned, other cells are names.

    >>> table(["item", "mean"], [["tea", "4.2"]], numbers=[1]).count('class="number"')
    2
    """

    def line(cells: Sequence[object], tag: str) -> str:
        marks = [' class="number"' if place in numbers else "" for place in range(len(cells))]
        parts = (
            f"<{tag}{mark}>{cell(value) if mark or tag == 'th' else isolated(value)}</{tag}>"
            for value, mark in zip(cells, marks, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(headers, 'th')}</thead><tbody>{body}</tbody></table>"


def interval(mean: float, std: float, low: float, high: float) -> Markup:
    """Return a bar of mean ± standard deviation on a scale from low to high.

    >>> "left:50.0%" in interval(3, 0.5, 1, 5)
    True
    """

    def percent(value: float) -> float:
        return 100 * min(max((value - low) / (high - low), 0.0), 1.0)

    start, end = percent(mean - std), percent(mean + std)
    return Markup(
        f'<div class="range"><i style="left:{start:.1f}%;width:{end - start:.1f}%"></i>'
        f'<u style="left:{percent(mean):.1f}%"></u></div>'
    )


def write_drawn(path: Path, figure: Figure, html: Callable[[], str]) -> None:
    """Write a figure as a PNG or, with any other name, the page that it is on."""
    with atomic_write(path) as fresh:
        if path.suffix.lower() == ".png":
            figure.savefig(fresh, format="png", dpi=DOTS_PER_INCH)
        else:
            fresh.write_text(html(), encoding="utf-8")


def picture(name: str, figure: Figure, description: str) -> str:
    """Return a figure as SVG inside the page, in the page's colours and font.

    ``name`` is the prefix of its ids.
    """
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"(font: [^'\";]*?px) [^;\"]*", r"\1 var(--font)", svg)
    svg = svg.replace("xlink:href", "href")
    for before in ('id="', 'href="#', "url(#"):
        svg = svg.replace(before, f"{before}{name}-")
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    label = escape(description, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
