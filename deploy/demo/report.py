"""One self-contained HTML file about a run: the curve of accept length against requests, switches, loss, versions.

Inline SVG, no script, nothing fetched; colours follow the reader's light or dark setting. Made from the
summary dict that demo.py also writes as summary.json, so `report.py summary.json out.html` makes it again.
"""
import html
import json
import math
import sys

STYLE = """
:root { --bg:#fff; --fg:#1d2329; --dim:#66707a; --grid:#e3e7eb; --card:#f6f8fa; --tools:#0b6fb8; --code:#c2570c; --other:#6a51a3; --switch:#2e7d32; --loss:#7a4fbf; }
@media (prefers-color-scheme: dark) { :root { --bg:#14181c; --fg:#e4e8ec; --dim:#98a2ac; --grid:#2b3238; --card:#1c2227; --tools:#5cb3f5;
 --code:#f59a4c; --other:#b39ddb; --switch:#7fce83; --loss:#b794f6; } }
body { background:var(--bg); color:var(--fg); font:15px/1.5 system-ui,sans-serif; max-width:1000px; margin:2em auto; padding:0 1em; }
h1 { font-size:1.5em; margin-bottom:.2em } h2 { font-size:1.1em; margin-top:2em } p.sub { color:var(--dim); margin-top:0 }
svg { width:100%; height:auto; background:var(--card); border-radius:8px } svg text { fill:var(--dim); font-size:12px }
table { border-collapse:collapse; width:100% } th,td { text-align:left; padding:.3em .8em .3em 0; border-bottom:1px solid var(--grid); font-variant-numeric:tabular-nums }
th { color:var(--dim); font-weight:600 } .key { display:inline-block; width:.8em; height:.8em; border-radius:50%; margin:0 .3em 0 1em; vertical-align:-1px }
.yes { color:var(--switch) } .no { color:#d33 }
"""

W, HGT, LEFT, RIGHT, TOP, BOTTOM = 960, 380, 48, 16, 28, 36


def colour(domain):
    return f"var(--{domain})" if domain in ("tools", "code") else "var(--other)"


def ticks(low, high, about=6):
    """Round numbers from low to high, a step of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    step = 10 ** math.floor(math.log10(rough))
    step *= next(m for m in (1, 2, 5, 10) if m * step >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Axes:
    """Data to pixels, with grid lines."""

    def __init__(self, x_max, y_min, y_max, height=HGT):
        self.x_max, self.y_min, self.y_max, self.height = max(x_max, 1), y_min, max(y_max, y_min + 1e-6), height

    def x(self, v):
        return LEFT + (W - LEFT - RIGHT) * v / self.x_max

    def y(self, v):
        v = min(max(v, self.y_min), self.y_max)
        return TOP + (self.height - TOP - BOTTOM) * (1 - (v - self.y_min) / (self.y_max - self.y_min))

    def grid(self, x_label, y_label):
        out = []
        for v in ticks(self.y_min, self.y_max):
            out.append(f'<line x1="{LEFT}" x2="{W - RIGHT}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}" stroke="var(--grid)"/>'
                       f'<text x="{LEFT - 6}" y="{self.y(v) + 4:.1f}" text-anchor="end">{v:.4g}</text>')
        for u in ticks(0, self.x_max):
            out.append(f'<text x="{self.x(u):.1f}" y="{self.height - BOTTOM + 18}" text-anchor="middle">{u:.0f}</text>')
        out.append(f'<text x="{W - RIGHT}" y="{self.height - 4}" text-anchor="end">{x_label}</text><text x="{LEFT}" y="16">{y_label}</text>')
        return "".join(out)

    def line(self, points, stroke, width=2.5):
        d = " ".join(f"{self.x(u):.1f},{self.y(v):.1f}" for u, v in points)
        return f'<polyline points="{d}" fill="none" stroke="{stroke}" stroke-width="{width}" stroke-linejoin="round"/>' if len(points) > 1 else ""


def rolling(requests, window):
    """[(request number, accept length over the last `window` drafted requests)]."""
    out = []
    for i, r in enumerate(requests):
        some = requests[max(0, i - window + 1):i + 1]
        if len(some) >= min(window, 4):
            out.append((r["n"], 1 + sum(s["accepted"] for s in some) / max(1, sum(s["proposing"] for s in some))))
    return out


def split_runs(requests, gap=30):
    """A domain's requests cut where the traffic turned to another domain for a while."""
    runs = []
    for r in requests:
        if not runs or r["n"] - runs[-1][-1]["n"] > gap:
            runs.append([])
        runs[-1].append(r)
    return runs


def accept_chart(s):
    drafted = [r for r in s["requests"] if r["proposing"]]
    top = max([1 + r["accepted"] / r["proposing"] for r in drafted] + [2.0])
    axes = Axes(max([r["n"] for r in s["requests"]] + [1]), 1.0, min(top + 0.1, 4.0))
    out = [axes.grid("requests", "accept length")]
    for i, w in enumerate(s["switches"]):
        x = axes.x(w["n"])
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HGT - BOTTOM}" stroke="var(--switch)" stroke-dasharray="4 3"/>'
                   f'<text x="{x + 3:.1f}" y="{TOP + 10 + 13 * (i % 3)}" style="fill:var(--switch)">{html.escape(w["label"])}</text>')
    for domain in s["domains"]:
        mine = [r for r in drafted if r["domain"] == domain]
        for r in mine:
            out.append(f'<circle cx="{axes.x(r["n"]):.1f}" cy="{axes.y(1 + r["accepted"] / r["proposing"]):.1f}" r="2.4" '
                       f'fill="{colour(domain)}" fill-opacity=".35"/>')
        for run in split_runs(mine):
            out.append(axes.line(rolling(run, 16), colour(domain)))
    return f'<svg viewBox="0 0 {W} {HGT}" role="img" aria-label="accept length against requests">{"".join(out)}</svg>'


def loss_chart(s):
    points = [(p["step"], p["loss"]) for p in s["training"] if p.get("loss") is not None]
    if len(points) < 2:
        return "<p class=sub>No training steps were seen.</p>"
    height = 220
    axes = Axes(points[-1][0], 0, max(v for _, v in points) * 1.05, height)
    return f'<svg viewBox="0 0 {W} {height}">{axes.grid("training steps", "loss")}{axes.line(points, "var(--loss)", 2)}</svg>'


def cell(value):
    if value is True or value is False:
        return f'<td class="{"yes" if value else "no"}">{"yes" if value else "no"}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def table(head, rows):
    return ("<table><tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in head) + "</tr>"
            + "".join("<tr>" + "".join(cell(c) for c in row) + "</tr>" for row in rows) + "</table>")


def render(s):
    """s: see Demo.summary()."""
    keys = "".join(f'<span class=key style="background:{colour(d)}"></span>{html.escape(d)}' for d in s["domains"])
    return f"""<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">
<title>redraft demo</title><style>{STYLE}</style>
<h1>redraft demo</h1><p class=sub>{html.escape(s["what"])}</p>
<h2>Accept length against requests</h2>{accept_chart(s)}
<p class=sub>{keys} &nbsp; dots: one request; line: mean over 16; dashed: the version that serves changes.
1.00 means that no proposal was taken.</p>
<h2>Result</h2>{table(("", "value"), s["table"])}
<h2>Accept length by domain</h2>{table(("domain", "requests", "start", "end", "rise (95 %)"), s["domain_table"])}
<h2>Training loss</h2>{loss_chart(s)}
<h2>Versions</h2>{table(("version", "state", "reason", "made"), s["version_table"])}
<h2>What happened</h2>{table(("time", "event"), s["events"])}
</html>
"""


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f, open(sys.argv[2], "w", encoding="utf-8") as g:
        g.write(render(json.load(f)))
