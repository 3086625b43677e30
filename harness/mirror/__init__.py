"""Data and models for machines without network: ``mirror`` writes a folder, ``inventory`` checks it."""
