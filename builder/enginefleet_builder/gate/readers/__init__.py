"""Readers of data sets, one module a format. All that they read comes from outside."""
