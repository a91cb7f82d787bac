"""Engine builders behind one interface (base.py). Empty on purpose: the child that holds an engine imports from here and must start fast."""
