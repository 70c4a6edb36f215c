"""CPU kernels, each beside its plain reference; `training.setup` plugs them in."""
