"""How an engine is judged: data sets, metrics, verdicts."""
