"""Environments that nobody has tuned settings for, as people bring them, each with a heuristic to compare with.

`import tasks` registers them with Gymnasium.
"""

import gymnasium

ENTRY_POINTS = {
    "Thermostat": "thermostat:Thermostat",
    "Admission": "admission:Admission",
    "Robot": "robot:Robot",
    "SparseRobot": "robot:SparseRobot",
    "Battery": "battery:Battery",
    "Cue": "cue:Cue",
    "Allocation": "allocation:Allocation",
    "SwingUp": "swing_up:SwingUp",
    "Inventory": "inventory:Inventory",
    "Scheduling": "scheduling:Scheduling",
    "Crane": "crane:Crane",
}

for _name, _place in ENTRY_POINTS.items():
    gymnasium.register(f"tasks/{_name}-v0", f"tasks.{_place}")
