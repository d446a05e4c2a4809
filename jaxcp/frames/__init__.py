"""Frames of forecasting libraries: tables of forecasts in, with their ends out."""

from jaxcp.frames.forecasts import ForecastCalibration, forecast

__all__ = ["ForecastCalibration", "forecast"]
__dir__ = __all__.copy
