"""Draws lines over two logarithmic axes as SVG, one panel beside the other."""

import dataclasses
import html
import math

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LEGEND = 520, 420, 70, 40, 60, 340


@dataclasses.dataclass
class Line:
    label: str
    points: list  # (x, y), both positive
    colour: str
    dash: str = ""  # as SVG's stroke-dasharray


@dataclasses.dataclass
class Panel:
    title: str
    lines: list


def text(x, y, words, **attributes):
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{html.escape(words)}</text>'


class Axis:
    """Maps low..high, logarithmic, to pixels first..last."""

    def __init__(self, values, base, first, last):
        self.base, self.first, self.last = base, first, last
        exponents = [math.log(value, base) for value in values]
        self.low, self.high = math.floor(min(exponents) + 1e-9), math.ceil(max(exponents) - 1e-9)
        self.high = max(self.high, self.low + 1)

    def __call__(self, value):
        part = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.first + part * (self.last - self.first)

    def ticks(self):
        return [float(self.base) ** exponent for exponent in range(self.low, self.high + 1)]


def panel_svg(panel, left, x_values, y_values, x_name, y_name):
    x = Axis(x_values, 4, left + LEFT, left + WIDTH - 15)
    y = Axis(y_values, 10, HEIGHT - BOTTOM, TOP)
    out = [text((x.first + x.last) / 2, TOP - 16, panel.title, text_anchor="middle", font_weight="bold")]
    for value in x.ticks():
        at = x(value)
        out.append(f'<line x1="{at:.1f}" y1="{y.first}" x2="{at:.1f}" y2="{y.last}" class="grid"/>')
        out.append(text(at, y.first + 16, x_name(value), text_anchor="middle"))
    for value in y.ticks():
        at = y(value)
        out.append(f'<line x1="{x.first}" y1="{at:.1f}" x2="{x.last}" y2="{at:.1f}" class="grid"/>')
        out.append(text(x.first - 6, at + 4, y_name(value), text_anchor="end"))
    for line in panel.lines:
        points = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in line.points)
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.8" '
            f'stroke-dasharray="{line.dash}"/>'
        )
        out += [
            f'<circle cx="{x(px):.1f}" cy="{y(py):.1f}" r="2.6" fill="{line.colour}"/>'
            for px, py in line.points
        ]
    return out


def svg(title, panels, x_name, y_name):
    """The picture: all panels have the same axes; a legend stands below. x_name and y_name write a tick's label."""
    points = [point for panel in panels for line in panel.lines for point in line.points]
    x_values, y_values = [x for x, _ in points], [y for _, y in points]
    legend = {line.label: line for panel in panels for line in panel.lines}
    columns = max(1, len(panels) * WIDTH // LEGEND)
    width, height = WIDTH * len(panels), HEIGHT + 20 * math.ceil(len(legend) / columns) + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{html.escape(title)}</title>",
        "<style>text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        out += panel_svg(panel, i * WIDTH, x_values, y_values, x_name, y_name)
    for i, line in enumerate(legend.values()):
        left, top = 30 + LEGEND * (i % columns), HEIGHT + 20 * (i // columns)
        out.append(
            f'<line x1="{left}" y1="{top}" x2="{left + 30}" y2="{top}" stroke="{line.colour}" stroke-width="2" '
            f'stroke-dasharray="{line.dash}"/>'
        )
        out.append(text(left + 36, top + 4, line.label))
    return "\n".join([*out, "</svg>", ""])
