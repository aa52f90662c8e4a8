"""Resources: what a round costs a device, in three accountings that are never mixed."""
