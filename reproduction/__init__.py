"""The tables and figures of the four papers, each tested on the models that can be had here."""
