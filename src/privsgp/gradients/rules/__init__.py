"""How each kind of layer gives per-sample gradients of many models at once."""
