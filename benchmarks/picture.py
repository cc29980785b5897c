"""Draw a measured table as bars, in SVG that shows in a README: nothing but the standard library."""

from __future__ import annotations

from xml.sax.saxutils import escape

BAR, GAP, LEFT, WIDTH = 22, 10, 150, 470
COLOURS = {"quantkit": "#2563eb", "peer": "#cbd5e1"}


def bars(title: str, note: str, rows: list[tuple[str, float, str]]) -> str:
    """Bars for (name, ratio, text) rows: how many times as fast as the best peer; the line at 1 is that peer."""
    most = max(ratio for _, ratio, _ in rows) * 1.05
    height = 80 + len(rows) * (BAR + GAP) + 30
    unit = WIDTH / most
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 150}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="100%" height="100%" fill="white"/><text x="16" y="28" font-size="16" font-weight="600">'
        f"{escape(title)}</text>",
        f'<text x="16" y="48" fill="#475569">{escape(note)}</text>',
    ]
    y = 66
    for name, ratio, text in rows:
        middle, length = y + BAR * 0.7, ratio * unit
        out += [
            f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{unit:.1f}" height="{BAR}" fill="{COLOURS["peer"]}"/>',
            f'<rect x="{LEFT}" y="{y + 4}" width="{length:.1f}" height="{BAR - 8}" fill="{COLOURS["quantkit"]}"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{middle}" fill="#0f172a">{ratio:.2f}x '
            f'<tspan fill="#64748b">{escape(text)}</tspan></text>',
        ]
        y += BAR + GAP
    line = LEFT + unit
    out += [
        f'<line x1="{line:.1f}" x2="{line:.1f}" y1="60" y2="{y}" stroke="#334155" stroke-dasharray="3 3"/>',
        f'<text x="{line:.1f}" y="{y + 16}" text-anchor="middle" fill="#334155">best peer</text>',
        "</svg>",
    ]
    return "\n".join(out) + "\n"
