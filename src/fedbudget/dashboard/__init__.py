"""A web page of the runs in a folder, live while they train."""
