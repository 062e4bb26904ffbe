"""What calibration is worth: error on a GPU nobody trained on, against how much of it was measured."""
