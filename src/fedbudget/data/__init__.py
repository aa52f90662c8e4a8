"""Where examples come from, how they are dealt to clients, and how a batch is drawn."""
