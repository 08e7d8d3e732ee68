"""Draw the charts of a report as inline SVG.

Numbers of ``report.data`` come in; markup goes out. Colours are CSS classes, so that the page decides how
they look on light and dark backgrounds and on paper.
"""
