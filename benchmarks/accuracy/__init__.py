"""How accurate is it? Suites of measured data, our predictors, baselines and peers, all on exactly the same rows."""
