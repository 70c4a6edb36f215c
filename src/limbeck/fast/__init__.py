"""CPU kernels, each tested against its plain reference; `training` plugs them in."""
