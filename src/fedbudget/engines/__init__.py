"""Engines carry Jobs to clients and Replies back; all call the same `train_client`."""
