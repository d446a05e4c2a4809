"""What users want to do, and which public names they do it with.

A name belongs to a task by its own name, or else by the module that defines it, or else
by the folder that lists it: the longest of these in the table decides.
"""

from notebooks._names import Name

TASKS: dict[str, tuple[str, str]] = {
    "Calibrate predictions": (
        "Turn the predictions of a fitted model into sets.",
        "calibration calibration.split calibration.predictor split_conformal_fit",
    ),
    "Scores for a number": (
        "Say how strange a number is for a prediction: intervals and bounds.",
        "scores.regression scores.increasing scores.histograms scores.rectified "
        "fit_quantile sets.Interval sets.Intervals",
    ),
    "Labels": (
        "Get sets of labels from probabilities, or of pixels, or of claims.",
        "scores.labels scores.claims sets.labels uniforms",
    ),
    "Several outputs, paths, fields and boxes": (
        "Get regions, bands and boxes for targets of more than one number.",
        "scores.multioutput scores.cdf scores.bands scores.BoxOffset scores.Density "
        "scores.Latent sets.regions sets.bands sets.Box sets.BoundingBox detection "
        "draw volume",
    ),
    "Models": (
        "Fit a model: one of your library, one in closed form, or a network.",
        "learners models learners.GradientLearner learners.MeanScale",
    ),
    "Too few rows to set some aside": (
        "Fit and calibrate on the same rows: full conformal, CV+, jackknife+.",
        "cross full resampling",
    ),
    "Groups and conditional coverage": (
        "Hold coverage in each group or class, under shifts, or near x.",
        "conditional calibration.conditional calibration.local calibrate_groups "
        "GroupCalibration",
    ),
    "Shifted and missing inputs": (
        "Weigh the rows by likelihood ratios, or hide what new rows lack.",
        "learners.ratios calibration.masked",
    ),
    "Selection, treatments, survival": (
        "Get sets for selected rows, effects of a treatment, and censored times.",
        "selection pvalues.selecting causal survival",
    ),
    "Risk control": (
        "Keep the mean of a loss at alpha, or find settings that do.",
        "risk",
    ),
    "Predictive distributions and probabilities": (
        "Get percentiles, whole distributions, and probabilities that are right.",
        "predictive",
    ),
    "Streams": (
        "Predict row after row, and learn from targets that come later.",
        "online enbpi",
    ),
    "Forecasts in frames": (
        "Give ends to the forecasts in the frame of a cross-validation.",
        "frames",
    ),
    "Monitors and anomalies": (
        "Notice strange rows, changes and drift, with few false alarms.",
        "online.monitors outliers pvalues conformal_p_value",
    ),
    "Metrics": (
        "Judge sets, distributions and probabilities on test rows.",
        "metrics",
    ),
    "Certificates": (
        "Know how many rows to calibrate with, and what so many can prove.",
        "certificates",
    ),
    "Pictures and reports": (
        "Draw sets, coverage and distributions.",
        "plotting",
    ),
    "Simulation": (
        "Repeat a trial many times, on data that are drawn from a known distribution.",
        "simulation datasets",
    ),
    "Save and serve": (
        "Keep a calibration in a file, and join what many machines hold.",
        "saving distributed join sharded_conformal_quantile",
    ),
    "Train for small sets": (
        "Send gradients through calibration, and choose a score's settings.",
        "training soft_conformal_quantile",
    ),
    "Your own scores, learners and rules": (
        "Write a part of your own, and let the library check it.",
        "scores scores.Custom scores.Labelwise scores.Given learners.general "
        "learners.check Rule online.Stream sets.Batch sets.LevelSet pytree static "
        "Held",
    ),
    "Protocols and kinds of predictions": (
        "Read what a score takes, and which methods a part of your own may have.",
        "typing scores.inputs",
    ),
    "Building blocks": (
        "Take the thresholds and ranks that every method is made with.",
        "quantiles",
    ),
}


def entries() -> dict[str, str]:
    """Returns the task of each entry of the table.

    Raises:
      ValueError: if an entry stands in two tasks.
    """
    found: dict[str, str] = {}
    for task, (_, words) in TASKS.items():
        for word in words.split():
            if word in found:
                raise ValueError(f"expected {word} in one task, got it in two")
            found[word] = task
    return found


def place(name: Name) -> str:
    """Returns the entry of the table that a name belongs to.

    Raises:
      ValueError: if there is none.
    """
    table = entries()
    short = name.full.removeprefix("jaxcp.")
    module = f"{getattr(name.value, '__module__', '')}."
    inside = module if module.startswith("jaxcp.") else ""
    for path in (inside, f"{name.family}."):
        above = [e for e in table if path.startswith(f"jaxcp.{e}.")]
        if short in table or above:
            return short if short in table else max(above, key=len)
    raise ValueError(f"expected a task for {name.full} in TASKS of {__name__}")


def of(name: Name) -> str:
    """Returns the task of a public name."""
    return entries()[place(name)]
