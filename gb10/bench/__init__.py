"""Requests whose answers are judged and whose times are taken: suites, their run, comparison of arms. Called by the command line and experiment.py."""
