"""What commands say: one record, several renderers."""

from tilecast.report.record import Grid, Report, versions

__all__ = ["Grid", "Report", "versions"]
