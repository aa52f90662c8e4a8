"""The tables of a config file; every key with its meaning."""

from fedbudget.tables.devices import Budget, Control, FleetTable, WorldTable
from fedbudget.tables.learning import CodecTable, Constraints, Data, Model, PrivacyTable, Train
from fedbudget.tables.table import Table

__all__ = [
    "Budget",
    "CodecTable",
    "Constraints",
    "Control",
    "Data",
    "FleetTable",
    "Model",
    "PrivacyTable",
    "Table",
    "Train",
    "WorldTable",
]
