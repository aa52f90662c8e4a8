"""Models shipped with the library, and the view of any model as layer groups in one vector."""
