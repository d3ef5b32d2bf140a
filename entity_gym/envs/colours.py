"""The colours of the worlds in replays and pictures."""

DARK, GREY = "#28282c", "#5a5a60"
ORANGE, RED, GREEN, BLUE = "#e69628", "#d22828", "#1e965a", "#266ec8"
