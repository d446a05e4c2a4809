"""Frames of forecasting libraries: tables of forecasts in, with their ends out."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.frames.forecasts import ForecastCalibration, forecast

__all__ = ["ForecastCalibration", "forecast"]
