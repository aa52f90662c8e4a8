"""The papers' tables and figures, the paper's value beside ours."""
