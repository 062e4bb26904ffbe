"""Which configuration a tunable kernel should run with: the space, accounts, the ranking, the files engines load."""
