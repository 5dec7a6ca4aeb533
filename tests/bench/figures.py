"""The picture of a bench: time to first token and time per token of each cell, as one SVG.

A row a cell: a line from the median over P95 to P99 on a logarithmic axis, the dot at the median. Standard library only.
"""
import html
import math
import re

LEFT, WIDTH, ROW, TOP, GAP = 330, 330, 20, 64, 60
PANELS = (("ttft", "time to first token, ms"), ("tpot", "time per token, ms"))


def _cells(rows):
    """{cell: {"ttft": {"p50": v, ...}, "tpot": ...}} in order, of figures named '<cell>: <ttft|tpot> <statistic>'."""
    out = {}
    for r in rows:
        m = re.fullmatch(r"(.+): (ttft|tpot) (p50|p95|p99)", r["figure"])
        if m and r["value"] > 0:
            out.setdefault(m[1], {}).setdefault(m[2], {})[m[3]] = r["value"]
    return {c: v for c, v in out.items() if any("p50" in x and "p99" in x for x in v.values())}


def _text(x, y, text, extra=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {extra}>{html.escape(text)}</text>'


def _panel(cells, metric, title, x0, bottom):
    values = [v for c in cells.values() for v in c.get(metric, {}).values()]
    if not values:
        return []
    low, high = math.floor(math.log10(min(values)) * 2) / 2, math.ceil(math.log10(max(values)) * 2) / 2
    high = max(high, low + 0.5)
    at = lambda v: x0 + WIDTH * (math.log10(v) - low) / (high - low)
    out = [_text(x0, TOP - 26, title, 'font-weight="bold"')]
    for e in range(math.floor(low), math.ceil(high) + 1):
        for k in (1, 3):
            v = k * 10.0**e
            if low - 1e-9 <= math.log10(v) <= high + 1e-9:
                out.append(f'<line x1="{at(v):.1f}" y1="{TOP - 6}" x2="{at(v):.1f}" y2="{bottom}" class="grid"/>')
                out.append(_text(at(v), TOP - 10, f"{v:g}", 'text-anchor="middle" class="small"'))
    for i, c in enumerate(cells.values()):
        s, y = c.get(metric, {}), TOP + ROW * i + ROW / 2
        if "p50" not in s or "p99" not in s:
            continue
        out.append(f'<line x1="{at(s["p50"]):.1f}" y1="{y}" x2="{at(s["p99"]):.1f}" y2="{y}" class="range"/>')
        out.append(f'<circle cx="{at(s["p50"]):.1f}" cy="{y}" r="4" class="dot"/>')
        for q in ("p95", "p99"):
            if q in s:
                out.append(f'<line x1="{at(s[q]):.1f}" y1="{y - 5}" x2="{at(s[q]):.1f}" y2="{y + 5}" class="range"/>')
    return out


def draw(rows, caption, path):
    """Writes the SVG; nothing when no cell has latencies."""
    cells = _cells(rows)
    if not cells:
        return
    bottom = TOP + ROW * len(cells)
    width, height = LEFT + 2 * WIDTH + GAP + 20, bottom + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           "<style>.grid{stroke:#ddd}.range{stroke:#2a6f97;stroke-width:2}.dot{fill:#2a6f97}.small{font-size:10px;fill:#666}</style>",
           f'<rect width="{width}" height="{height}" fill="white"/>', _text(10, 20, "redraft-serve under load: median (dot), P95 and P99 (ticks)", 'font-size="14"')]
    for i, name in enumerate(cells):
        out.append(_text(LEFT - 12, TOP + ROW * i + ROW / 2 + 4, name, 'text-anchor="end"'))
    for i, (metric, title) in enumerate(PANELS):
        out += _panel(cells, metric, title, LEFT + i * (WIDTH + GAP), bottom)
    out += [_text(10, height - 10, caption, 'class="small"'), "</svg>"]
    path.write_text("\n".join(out), encoding="utf-8")
