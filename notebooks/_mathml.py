"""Formulas as MathML: browsers set it without a script, a font or a network."""

import itertools
import re

from docutils.nodes import Element, SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

_FENCES = {  # braces, ceilings and floors, which are no identifiers
    **dict.fromkeys(("0007B", "02308", "0230A"), "prefix"),
    **dict.fromkeys(("0007D", "02309", "0230B"), "postfix"),
}
_FENCE = r'<m[io](?: stretchy="false")?>&#x(0007[BCD]|0230[89AB]);</m[io]>'
_OPEN = r"(<mo[^>]*>&#x000(?:28|2C|3D|5B);</mo>)"  # then a sign is of what follows
_MENDED = {  # what the converter writes, and what browsers set well
    r"<mi>:</mi>": "<mo>:</mo>",
    r"(<mo minsize[^>]*)>\\([{}])</mo>": r"\1>\2</mo>",  # of \Big
    r"<mo>&#x0005E;</mo>": '<mo stretchy="false">&#x002C6;</mo>',  # a hat
    r"<mo>&#x0221E;</mo>": "<mi>&#x0221E;</mi>",
    r"^(<math[^>]*><mrow>)<mo>": r'\1<mo lspace="0">',
    _OPEN + r"<mo>(&#x02212;|&#x0002B;)</mo>": r'\1<mo form="prefix">\2</mo>',
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the renderer "mathml" to Sphinx, for `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mathml(formula: str, display: str = "inline") -> str:
    """Returns a formula in LaTeX as MathML, with the space that fences should have."""
    text = convert(formula, display=display)
    for pattern, better in _MENDED.items():
        text = re.sub(pattern, better, text)
    bars = itertools.cycle(("prefix", "postfix"))  # |y|; a condition is \mid

    def fence(found: re.Match) -> str:
        form = _FENCES.get(found[1]) or next(bars)
        space = 'lspace="0" rspace="0" stretchy="false"'
        return f'<mo form="{form}" {space}>&#x{found[1]};</mo>'

    return re.sub(_FENCE, fence, text)


def _inline(translator: HTML5Translator, node: Element) -> None:
    translator.body.append(mathml(node.astext()))
    raise SkipNode


def _display(translator: HTML5Translator, node: Element) -> None:
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise SkipNode
