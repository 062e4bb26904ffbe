"""One file per kernel family: launch parameters in, tasks out."""
