"""How many steps, how much noise, which method: before anything is trained."""
