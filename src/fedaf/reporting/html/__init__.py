"""The report of runs as one HTML file: inline style, charts and images, no script and no request.

It is made from run directories alone. ``write_report`` is all that other rooms need.
"""

from fedaf.reporting.html.page import REPORT, write_report

__all__ = ["REPORT", "write_report"]
