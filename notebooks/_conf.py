"""Settings of Sphinx for the site; `notebooks.site` puts them beside its pages."""

from pathlib import Path

project = "jaxcp"
author = "the authors of jaxcp"
root_doc = "index"
exclude_patterns = ["_build"]
extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "notebooks._mathml",
    "notebooks._heads",
    "notebooks._sidebar",
]

# Pages are what GitHub shows: plain Markdown, with anchors for headings.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "dollarmath", "html_image"]
myst_dmath_allow_space = False  # as GitHub: $x$ is a formula, "$5 and $6" is not
myst_dmath_allow_digits = False
myst_fence_as_directive = ["math"]
html_math_renderer = "mathml"
nb_execution_mode = "off"  # outputs are those of the last run
nb_merge_streams = True
nb_ipywidgets_js = {}  # nothing is loaded from elsewhere

# The reference writes its own entries: types are words, other names are links.
add_module_names = True
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*"), ("py:exc", ".*")]
python_maximum_signature_line_length = 72
toc_object_entries_show_parents = "hide"

# Code is copied without prompts; outputs have no button.
copybutton_selector = "div:not(.output, .highlight-text) > .highlight pre"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

smartquotes_action = "D"  # dashes; shapes such as (n, ...) are shown as written
html_theme = "furo"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]
html_search_scorer = str(Path(__file__).parent / "_static" / "search.js")
html_copy_source = False
html_use_index = False  # the reference lists its names itself
html_domain_indices = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0072B2",
        "color-brand-content": "#0072B2",
    },
    "dark_css_variables": {
        "color-brand-primary": "#56B4E9",
        "color-brand-content": "#56B4E9",
    },
}
