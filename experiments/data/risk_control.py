"""Risk control on scores of labels, masks, digits, and under a shift.

`python -m experiments.data.risk_control --data DIR --out DIR`

With coco_tresnetxl.npz in the data folder: the false negative rate of 80 labels by
conformal risk control and with probability 1 - delta, and the false discovery rate by
learn then test, beside what the authors printed. Published are only those figures; all
others are our own. With MAPIE installed, its thresholds and times beside ours. The
masks are generated; the digits are those of MNIST (t10k-images-idx3-ubyte.gz), or of
scikit-learn without a data folder.
"""

import importlib.util
from functools import partial
from pathlib import Path

import jax

from experiments.data import risk_coco, risk_tasks
from experiments.peers import risk_peers
from experiments.tools.reporting import (
    arguments,
    print_table,
    save_figure,
    save_results,
)


def tables(key: jax.Array, folder: Path | None) -> dict:
    """Returns what makes the lines of each table, by name."""
    keys = jax.random.split(key, 8)
    made = {}
    if folder is not None:
        data = risk_coco.coco(folder)
        made["crc"] = partial(risk_coco.crc_lines, data, keys[0])
        made["rcps"] = partial(risk_coco.rcps_lines, data, keys[1])
        made["ltt"] = partial(risk_coco.ltt_lines, data, keys[2])
    digits = risk_tasks.answers(keys[3], folder)
    made["answers"] = partial(risk_tasks.selective_lines, digits, keys[4])
    made["masks"] = partial(risk_tasks.segmentation_lines, keys[5])
    made["shift"] = partial(risk_tasks.shift_lines, keys[6])
    if importlib.util.find_spec("mapie"):
        made["precision"] = risk_peers.precision_lines
        if folder is not None:
            made["mapie"] = partial(risk_peers.coco_lines, data)
    return made


def main() -> None:
    """Prints and saves all tables, and draws masks."""
    parser = arguments(__doc__, draws=True)
    parser.add_argument("--data", type=Path, help="folder with COCO's scores and MNIST")
    args = parser.parse_args()
    key_tables, key_figure = jax.random.split(jax.random.key(0))
    settings = {"delta": risk_coco.DELTA, "seed": 0}
    for name, lines_of in tables(key_tables, args.data).items():
        lines = lines_of()
        print_table(name, lines)
        save_results(args.out, f"risk_control_{name}", lines, settings)
    save_figure(risk_tasks.draw_masks(key_figure), args.out, "risk_control_masks")


if __name__ == "__main__":
    main()
