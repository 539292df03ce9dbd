"""Where torch.compile makes another artifact, and why. Floor 2; `explain` is the way in."""
