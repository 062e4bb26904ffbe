"""How the mixed raw tables in extra/ become schema rows: Vidur, Frontier, LLMServingSim and InferSim share them, a file here for each.

Each raw table says which family a row belongs to and what every column of that family is, as expressions over the raw columns.
A GPU, method, flag, source or operation that nothing here is written for raises: no row is dropped silently.
"""
