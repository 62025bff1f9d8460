"""The colour of each method, the same in every picture and in the report."""

#: The colour of each method in every figure. FedAF and FedAF+ have thick lines.
COLOURS = {
    "fedaf-plus": "tab:red",
    "fedaf": "tab:blue",
    "feddm": "tab:green",
    "fedavg": "black",
    "fedprox": "tab:orange",
    "fedbn": "tab:brown",
    "moon": "tab:purple",
    "feddyn": "tab:cyan",
    "fedgen": "tab:pink",
    "scaffold": "gold",
    "fednova": "limegreen",
    "fedavgm": "slategray",
    "fedadam": "magenta",
    "fedyogi": "tan",
}
#: References are grey and never solid.
REFERENCES = {"pooled": ("dimgrey", "--"), "local": ("darkgrey", "-.")}
THICK = {"fedaf-plus": 2.6, "fedaf": 2.0}
OTHER_COLOURS = ("tab:gray", "tab:olive", "darkgoldenrod", "navy", "teal", "indigo", "darkred", "lightcoral")
