"""The paper's tables, run by run, and the report."""
