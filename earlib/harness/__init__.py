"""Profiles, running notebooks, tables, figures and report pages."""
