"""Formulas as MathML, which browsers draw by themselves: no script, no font to fetch."""

import html
import re

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.S)


def as_mathml(page: str) -> str:
    page = _BLOCK.sub(lambda m: f'<div class="formula">{_mathml(m[1], "block")}</div>', page)
    return _INLINE.sub(lambda m: _mathml(m[1], "inline"), page)


def _mathml(tex: str, display: str) -> str:
    # GitHub wants aligned inside a formula; the converter knows it by its other name
    return convert(html.unescape(tex).replace("{aligned}", "{align*}"), display=display)
