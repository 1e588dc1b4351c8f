"""The page: one file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape

import wager
from wager.report.charts import NONE
from wager.report.colours import Palette, drafter_of
from wager.report.figures.base import SECTIONS, Cell, Figure, Key, Table, Value
from wager.report.figures.choice import by_batch, choice, shares
from wager.report.figures.cost import cost
from wager.report.figures.load import latency, lengths
from wager.report.figures.regret import regret
from wager.report.figures.speed import speed
from wager.report.figures.survival import survival
from wager.report.style import CSS, SCRIPT
from wager.report.tokens import token_view
from wager.report.views import Material, Source

# Pixels inside a card: on a phone, on a tablet, over the whole page, over half of it.
PHONE, TABLET, WHOLE, HALF = 330, 640, 1062, 490
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"  # the page can fetch nothing
LONG = 110  # characters; a headline with more is cut at its semicolon
MAKES = {  # kind of figure -> what it is called where it is missing, and the commands that make it
    "speed": ("Speed-up", ("wager bench",)),
    "regret": ("Regret", ("wager bench", "wager simulate --json")),
    "choice": ("Arm choice", ("wager bench", "wager generate --trace")),
    "survival": ("Survival of drafts", ("wager bench", "wager generate --trace")),
    "cost": ("Verify cost by width", ("wager bench engine --json",)),
    "load": ("Latency and length under load", ("wager bench versus --json",)),
    "tokens": ("Token by token", ("wager bench", "wager generate --json")),
}


def figures(materials: Sequence[Material]) -> list[Figure]:
    """Every figure the materials allow, in the order of the page."""
    palette = Palette(_drafters(materials))
    found: list[Figure | None] = []
    for m in materials:
        found += [speed(view) for view in m.speedups]
        found += [regret(view) for view in m.regrets]
        found += [choice(view, palette) for view in m.choices]
        found += [by_batch(view, palette) for view in m.choices if view.batches]
        found += [shares(view, palette) for view in m.shares]
        found += [survival(view, palette) for view in m.drafted]
        found += [cost(view) for view in m.costs]
        for load in m.loads:
            found += [latency(load), lengths(load)]
        if m.texts:
            found.append(token_view(m.texts, palette))
    order = [kind for _, _, kinds in SECTIONS for kind in kinds]
    return sorted((f for f in found if f is not None), key=lambda f: order.index(f.kind))


def _drafters(materials: Sequence[Material]) -> list[str]:
    """All drafters named anywhere, in the order they are met."""
    found: list[str] = []
    for m in materials:
        found += [who for text in m.texts for r in text.rounds for _, who in r.tokens]
        found += [name.removesuffix(" (tree)") for view in m.drafted for name in view.pairs]
        found += [drafter_of(arm) for view in m.choices for arm in view.arms]
        found += [drafter_of(arm) for view in m.shares for row in view.rows.values() for arm in row]
    return list(dict.fromkeys(found))


def render(materials: Sequence[Material], *, refresh: float | None = None, now: str = "") -> str:
    """The whole page as text; with ``refresh`` it loads itself anew after so many seconds."""
    drawn = figures(materials)
    lead = next((m for m in materials if m.verdict and m.figures), materials[0])
    title = f"wager report: {', '.join(m.source.file for m in materials)}"
    live = (
        f'<p class="live" role="status">live, written {escape(now)}; this page loads itself anew</p>'
        if refresh is not None
        else ""
    )
    again = f'<meta http-equiv="refresh" content="{max(1, round(refresh))}">' if refresh is not None else ""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>",
        f'<header><p class="brand"><b>wager</b> report</p>{live}{_headline(lead)}',
        _unfinished(materials),
        _big(lead),
        _others(lead, materials),
        _nav(drawn),
        "</header><main>",
    ]
    number = 0
    for key, name, kinds in SECTIONS:
        own = [f for f in drawn if f.kind in kinds]
        if own:
            cards = []
            halves = [f for f in own if not f.wide]
            for figure in own:
                number += 1
                alone = len(halves) % 2 == 1 and figure is halves[-1]  # nothing stands beside it
                cards.append(_card(figure, number, wide=figure.wide or alone))
            parts.append(f'<section id="{key}"><h2>{name}</h2><div class="cards">{"".join(cards)}</div></section>')
    parts += [_missing(drawn), _sources([m.source for m in materials]), "</main>"]
    parts.append(
        f"<footer>Made by wager {escape(wager.__version__)} from the files above; no number is from elsewhere.</footer>"
    )
    parts.append(f'<div id="tip" role="tooltip" hidden></div><script>{SCRIPT}</script></body></html>\n')
    return "".join(parts)


def _headline(lead: Material) -> str:
    first, *rest = lead.verdict or [f"What {lead.source.file} holds."]
    head, _, tail = first.partition("; ") if len(first) > LONG else (first, "", "")
    rest = [tail[:1].upper() + tail[1:], *rest] if tail else rest
    said = f'<p class="lede">{_marked(" ".join(rest))}</p>' if rest else ""
    return f"<h1>{_marked(head.rstrip('.') + '.')}</h1>{said}"


def _marked(sentence: str) -> str:
    """A sentence whose `names` stand out."""
    parts = escape(sentence).split("`")
    if len(parts) % 2 == 0:  # a lone mark is a mark
        return "`".join(parts)
    return "".join(f"<b>{part}</b>" if i % 2 else part for i, part in enumerate(parts))


def _others(lead: Material, materials: Sequence[Material]) -> str:
    """One line for every other file."""
    lines = [
        f"<li><b>{escape(m.source.file)}</b><span>{_marked(m.verdict[0])}</span></li>"
        for m in materials
        if m is not lead and m.verdict
    ]
    return f'<ul class="others" aria-label="The other files">{"".join(lines)}</ul>' if lines else ""


def _unfinished(materials: Sequence[Material]) -> str:
    cut = [m.source for m in materials if not m.source.complete]
    return "".join(
        f'<p class="lede"><b>{escape(s.file)} is not finished</b>: the figures hold what every method '
        f"has answered so far. Go on with: <code>{escape(s.command)}</code></p>"
        for s in cut
    )


def _big(lead: Material) -> str:
    if not lead.figures:
        return ""
    cells = [
        f"<div><dt>{escape(b.label)}<span>{escape(b.note)}</span></dt><dd>{escape(b.value)}</dd></div>"
        for b in list(lead.figures)[:4]
    ]
    return f'<dl class="big">{"".join(cells)}</dl>'


def _nav(drawn: Sequence[Figure]) -> str:
    present = {f.kind for f in drawn}
    links = [f'<a href="#{key}">{name}</a>' for key, name, kinds in SECTIONS if present & set(kinds)]
    return f'<nav aria-label="Sections">{"".join(links)}</nav>' if len(links) > 1 else ""


def _card(figure: Figure, number: int, *, wide: bool) -> str:
    kind = f' class="of-{figure.kind}{"" if wide else " half"}"'
    body = ""
    panels = list(figure.panels)
    if panels:
        heading, draw = panels[0]
        body += (f"<h4>{escape(heading)}</h4>" if heading else "") + _sized(draw, WHOLE if wide else HALF)
    if len(panels) > 1:
        small = "".join(f"<div><h4>{escape(name)}</h4>{draw(PHONE)}</div>" for name, draw in panels[1:])
        body += f'<div class="panels">{small}</div>'
    legend = _legend(figure.legend)
    # A legend comes before words that need it, and after a chart.
    body = legend + figure.html if figure.html and not panels else body + figure.html + legend
    return (
        f'<figure{kind} id="figure-{number}" aria-labelledby="name-{number}">'
        f'<h3 id="name-{number}">{escape(figure.title)}</h3>'
        f'<p class="says">{escape(figure.says)}</p>{body}{_foot(figure)}</figure>'
    )


def _sized(draw: Callable[[int], str], wide: int) -> str:
    """A chart for a wide window, a tablet and a phone; the style sheet shows one of them."""
    return "".join(
        f'<div class="{kind}">{draw(width)}</div>'
        for kind, width in (("wide", wide), ("v640", TABLET), ("v330", PHONE))
    )


def _legend(keys: Sequence[Key]) -> str:
    if not keys:
        return ""
    return f'<ul class="legend">{"".join(f"<li>{_swatch(key)}{escape(key.name)}</li>" for key in keys)}</ul>'


def _swatch(key: Key) -> str:
    if key.hollow:
        return '<i class="hollow"></i>'
    if not key.line:
        return f'<i style="background:{key.colour}"></i>'
    dash = f' stroke-dasharray="{key.dash}"' if key.dash else ""
    return (
        '<svg viewBox="0 0 28 10" aria-hidden="true">'
        f'<line class="line" x1="1" x2="27" y1="5" y2="5" style="stroke:{key.colour}"{dash}/></svg>'
    )


def _foot(figure: Figure) -> str:
    source = figure.source
    short = f" · <code>{escape(shortened(source.command))}</code>" if source.command else ""
    table = f"{_table(figure.table, figure.title)}" if figure.table is not None else ""
    note = f"<p>{escape(figure.note)}</p>" if figure.note else ""
    command = f"<p>Command: <code>{escape(source.command)}</code></p>" if source.command else ""
    return (
        f'<div class="foot">{note}<p>Source: {escape(source.file)}{short}</p>'
        f"<details><summary>Numbers and command</summary>{table}{command}</details></div>"
    )


def shortened(command: str) -> str:
    """A command without its options and what it was given."""
    words = command.split()
    end = next((i for i, word in enumerate(words) if not re.fullmatch("[a-z]+", word)), len(words))
    return " ".join(words[: min(end, 3)]) + (" …" if min(end, 3) < len(words) else "")


def _table(table: Table, title: str) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    body = "".join(f"<tr>{_first(row[0])}{''.join(map(_cell, row[1:]))}</tr>" for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}, numbers"><table class="numbers">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _first(cell: Cell) -> str:
    said = cell.said if isinstance(cell, Value) else cell or ""
    return f'<th scope="row">{escape(said)}</th>'


def _cell(cell: Cell) -> str:
    if isinstance(cell, Value):
        return f'<td data-v="{cell.number!r}">{escape(cell.said)}</td>'
    return f"<td>{escape(cell) if cell is not None else NONE}</td>"


def _missing(drawn: Sequence[Figure]) -> str:
    present = {f.kind for f in drawn}
    lines = []
    for kind, (name, commands) in MAKES.items():
        if kind not in present:
            made = " or ".join(f"<code>{escape(command)}</code>" for command in commands)
            lines.append(f"<li><b>{name}</b>: these files hold nothing for it; {made} does.</li>")
    if not lines:
        return ""
    return f'<section id="missing"><h2>Not on this page</h2><ul class="missing">{"".join(lines)}</ul></section>'


def _sources(sources: Sequence[Source]) -> str:
    items = "".join(
        f"<li><b>{escape(s.file)}</b>, {escape(s.kind)} "
        f"<span>{escape(', '.join(filter(None, (s.date, s.machine))))}</span>"
        + (f"<br><code>{escape(s.command)}</code>" if s.command else "")
        + "</li>"
        for s in sources
    )
    return f'<section id="sources"><h2>Sources</h2><ol class="sources">{items}</ol></section>'
