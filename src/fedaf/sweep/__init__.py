"""Many runs: workers and budgets."""
