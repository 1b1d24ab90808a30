"""Sweeps over data, models, variants and proportions, and the report of what they measured."""
