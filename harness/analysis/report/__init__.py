"""Everything that was measured, on one page that opens from disk: see ``page.make_page``."""

from harness.analysis.report.page import Page, make_page

__all__ = ["Page", "make_page"]
