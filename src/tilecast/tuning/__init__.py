"""Which configuration a tunable kernel should run with: the space, the account of each configuration, the ranking, the files engines load."""
