"""What every test shares."""

from hypothesis import settings

# Times depend on the machine and its other work: no example fails for having been slow.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
