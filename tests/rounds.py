"""Rounds of one experiment, without the axis of experiments."""

from jaxfed.engine import execution
from jaxfed.engine.stacking import row


def run_round(programs, mesh, *arguments):
    server, metrics, models = execution.run_round(programs, mesh, *execution.alone(*arguments))
    return row(server, 0), row(metrics, 0), models


def compile_round(parts, mesh, *arguments):
    return execution.compile_round(parts, mesh, *execution.alone(*arguments))
