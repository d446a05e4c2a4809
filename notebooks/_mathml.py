"""Formulas as MathML: browsers set it without a script, a font or a network."""

from docutils.nodes import Element, SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the renderer "mathml" to Sphinx, for `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: HTML5Translator, node: Element) -> None:
    translator.body.append(convert(node.astext()))
    raise SkipNode


def _display(translator: HTML5Translator, node: Element) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise SkipNode
