"""Notebooks: percent scripts are the source, the executed .ipynb lie beside them."""
