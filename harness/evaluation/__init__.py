"""Scores a model with lm-eval: suites say what is asked, ``lm`` answers with our engine, ``evaluate`` joins the two."""
