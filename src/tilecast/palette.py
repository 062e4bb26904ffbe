"""One colour-blind-safe palette (Okabe and Ito, 2008) for the terminal, PNG and HTML, and the roles its colours play."""

BLACK, GREY = "#000000", "#6B7280"
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"

SERIES = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW, BLACK)  # in the order plots use them

ANSWER = "bold"
EMPHASIS = BLUE
QUIET = GREY
