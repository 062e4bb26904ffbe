"""Compact nn.Modules of the model families `tilecast step` knows: one file each, with the operators that eager Hugging Face code runs."""
